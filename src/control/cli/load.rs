//! Finds and reads the configuration, and the certificates that it names. Called by every command that needs one, and
//! by `serve` again for a reload.

use super::args::ConfigArg;
use super::output::Failure;
use crate::io::reactor::{Authority, Security};
use crate::io::{files, secrets};
use crate::policy::config::{AuthoritySpec, Config, ConfigError, Source, StoreUrl};
use crate::policy::settings::secret::{Secret, fit as fit_secret};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names the configuration if no argument does.
const VARIABLE: &str = "TOLLGATE_CONFIG";
/// Contains the configuration itself if no file is named. Its name replaces the file name in messages.
const INLINE: &str = "TOLLGATE_CONFIG_TOML";
const INLINE_NAME: &str = "$TOLLGATE_CONFIG_TOML";
/// Default paths, tried in this order after the variables.
const USUAL: [&str; 2] = ["tollgate.toml", "/etc/tollgate/tollgate.toml"];

/// Placeholder for secrets and certificates that a command does not need; long enough for either.
const PLACEHOLDER: &str = "-----BEGIN CERTIFICATE----- -----BEGIN PRIVATE KEY-----";

/// A command's need for the secrets in a configuration.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Secrets {
    /// All must exist.
    Needed,
    /// Missing and malformed secrets are skipped: an operator who issues keys need not have the providers' credentials.
    Optional,
}

/// False if the variable, file or program of a secret had none, so that [`Secrets::Optional`] skipped it.
pub fn is_known(secret: &Secret) -> bool {
    secret.expose() != PLACEHOLDER
}

/// Reads every certificate in `config`; an error names the setting with the file. `before`: the current certificates of
/// a running process.
pub(crate) fn security(config: &Config, before: Option<&Security>) -> Result<Security, String> {
    let authority = |spec: &AuthoritySpec| Authority {
        server_name: spec.server_name.clone(),
        ca_file: spec.ca_file.clone(),
        retired: spec.retired,
    };
    let authorities: Vec<Authority> = config.authorities.iter().map(authority).collect();
    let own = config.server.tls.as_ref().map(|files| (files.cert.as_path(), files.key.as_path()));
    let loaded = Security::load(&authorities, own, before).map_err(|error| error.to_string());
    loaded.map_err(|why| config.pem_error(&why).map_or(why, |error| error.to_string()))
}

/// File to use: the argument, otherwise the variable, otherwise the first default path that exists.
pub fn find(arg: &ConfigArg) -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    choose(arg.config.clone(), set(VARIABLE).map(PathBuf::from), set(INLINE).is_some(), |path| path.exists())
}

/// The variable that prevents commands from finding the file at `path` by default.
pub fn hiding(path: &Path) -> Option<&'static str> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let other = set(VARIABLE).is_some_and(|named| Path::new(&named) != path);
    if other { Some(VARIABLE) } else { set(INLINE).is_some().then_some(INLINE) }
}

fn choose(
    argument: Option<PathBuf>,
    variable: Option<PathBuf>,
    inline: bool,
    exists: impl Fn(&Path) -> bool,
) -> Result<PathBuf, Failure> {
    if argument.is_none() && variable.is_some() && inline {
        return Err(Failure::failed(format!("both ${VARIABLE} and ${INLINE} are set: unset one of them")));
    }
    if let Some(path) = argument.or(variable).or(inline.then(|| INLINE_NAME.into())) {
        return Ok(path);
    }
    let usual = USUAL.iter().map(PathBuf::from).find(|path| exists(path));
    usual.ok_or_else(|| {
        let places = USUAL.join(" nor ");
        Failure::failed(format!(
            "no configuration: no --config, no ${VARIABLE}, no ${INLINE}, neither {places} exists; run this in the \
             folder of the file, or name the file (`tollgate init` writes a first one, `tollgate demo` needs none)"
        ))
    })
}

/// Reads and checks the file at `path`.
pub fn read(path: &Path, needed: Secrets) -> Result<Config, Vec<ConfigError>> {
    let file = path.to_string_lossy();
    let unreadable = |error: std::io::Error| {
        let message = format!("cannot read the configuration: {error}");
        vec![ConfigError { file: file.to_string(), line: None, field: String::new(), message }]
    };
    refuse_foreign(path).map_err(unreadable)?;
    // `check --print` reads by the absolute path, which ends with the variable's name, too.
    let bytes = match path.ends_with(INLINE_NAME) {
        true => std::env::var_os(INLINE).unwrap_or_default().into_encoded_bytes(),
        false => files::read(path).map_err(unreadable)?,
    };
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = u32::try_from(1 + before.iter().filter(|byte| **byte == b'\n').count()).ok();
        vec![ConfigError { file: file.to_string(), line, field: String::new(), message: "not UTF-8".to_string() }]
    })?;
    parse(path, &text, needed)
}

/// Checks `text`, the content of the file at `path`.
pub fn parse(path: &Path, text: &str, needed: Secrets) -> Result<Config, Vec<ConfigError>> {
    let stand_in = || (needed == Secrets::Optional).then(|| PLACEHOLDER.to_string());
    // For commands that do not need it, a secret that no header can carry is as good as none. Certificates have several
    // lines.
    let is_fit =
        |value: &String| needed == Secrets::Needed || fit_secret(value).is_ok() || value.contains("-----BEGIN ");
    let env = |name: &str| std::env::var(name).ok().filter(is_fit).or_else(stand_in);
    let read = |path: &str| match files::read_text(Path::new(path)) {
        Ok(value) if is_fit(&value) => Ok(value),
        Ok(value) => Ok(stand_in().unwrap_or(value)),
        Err(error) => stand_in().ok_or(error),
    };
    // Programs are not run for commands that do not need their output.
    let run = |program: &[String], hidden: &[String]| match stand_in() {
        Some(value) => Ok(value),
        None => {
            let hidden: Vec<String> = hidden.iter().cloned().chain([INLINE.to_string()]).collect();
            secrets::run(program, &hidden)
        }
    };
    let mut config = Config::parse(&Source { file: &path.to_string_lossy(), text, env: &env, read: &read, run: &run })?;
    if matches!(config.store.url, StoreUrl::Redis(_)) {
        // All commands use the gateway's folder.
        let beside = || path.parent().map(Path::to_path_buf);
        config.store.spill = config.store.spill.or_else(beside);
    }
    Ok(config)
}

/// A file in the current folder may be anyone's, and it was found without being named. It decides which files root
/// reads, where their content is sent, and which programs run, so root uses only its own.
fn refuse_foreign(path: &Path) -> std::io::Result<()> {
    if path != Path::new(USUAL[0]) || !std::fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0) {
        return Ok(());
    }
    let owner = std::fs::metadata(path)?.uid();
    if owner == 0 {
        return Ok(());
    }
    let text = format!(
        "root does not use a file of user {owner} that it finds in the present folder: give it by its path, \
         `--config ./{}`",
        USUAL[0]
    );
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, text))
}

/// Finds, reads and checks the configuration.
pub fn load(arg: &ConfigArg, secrets: Secrets) -> Result<Config, Failure> {
    read(&find(arg)?, secrets).map_err(Failure::Config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_variable_and_default_paths_have_this_order() {
        let path = |text: &str| Some(PathBuf::from(text));
        let all = |_: &Path| true;
        assert_eq!(choose(path("a"), path("b"), true, all), Ok("a".into()));
        assert_eq!(choose(None, path("b"), false, all), Ok("b".into()));
        assert_eq!(choose(None, None, false, all), Ok("tollgate.toml".into()));
        let system = |path: &Path| path.is_absolute();
        assert_eq!(choose(None, None, true, all), Ok(INLINE_NAME.into()));
        assert!(choose(None, path("b"), true, all).is_err(), "which of the two was meant?");
        assert_eq!(choose(None, None, false, system), Ok("/etc/tollgate/tollgate.toml".into()));
    }

    #[test]
    fn missing_named_file_is_not_skipped() {
        assert_eq!(choose(Some("gone.toml".into()), None, false, |_| false), Ok("gone.toml".into()));
        let errors = read(Path::new("/nonexistent/gone.toml"), Secrets::Needed).unwrap_err();
        assert!(errors[0].to_string().starts_with("/nonexistent/gone.toml: "));
    }

    #[test]
    fn error_without_a_configuration_names_the_paths() {
        let Err(Failure::Failed(text)) = choose(None, None, false, |_| false) else { panic!("found one") };
        assert!(text.contains("tollgate.toml") && text.contains("TOLLGATE_CONFIG"), "{text}");
        assert!(text.contains("tollgate init") && text.contains("tollgate demo"), "{text}");
    }
}
