//! `set_params` and `default_params` of a model. They cannot contain members that the gateway reads or writes itself.

use crate::policy::catalog::ModelParam;
use crate::policy::settings::reader::{Field, Reader, Section};

/// Members in one of the two tables.
const PARAMS_MAX: usize = 32;
/// Bytes of them as JSON, names included.
const BYTES_MAX: usize = 16 * 1024;
/// Bytes of a name.
const NAME_MAX: usize = 64;

/// Members for content, form and model of the answer, which only the client or the gateway sets.
const OWN: [&str; 24] = [
    "model",
    "messages",
    "input",
    "prompt",
    "query",
    "documents",
    "system",
    "instructions",
    "stream",
    "stream_options",
    "n",
    "best_of",
    "include",
    "store",
    "background",
    "conversation",
    "previous_response_id",
    "thread",
    "diagnostics",
    "models",
    "fallbacks",
    "api_base",
    "container",
    "mcp_servers",
];
/// Bounds on completion tokens, which determine reservations.
const BOUNDS: [&str; 5] = ["max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict"];

/// Takes both tables; no name may be in both.
pub(super) fn read(reader: &mut Reader<'_>, model: &mut Section<'_>) -> (Vec<ModelParam>, Vec<ModelParam>) {
    let set = read_table(reader, model, "set_params", &[]);
    let default = read_table(reader, model, "default_params", &set);
    (set, default)
}

/// Takes the table `key`, in the order it is written in; a name among `others` is an error.
fn read_table(
    reader: &mut Reader<'_>,
    model: &mut Section<'_>,
    key: &'static str,
    others: &[ModelParam],
) -> Vec<ModelParam> {
    let Some(field) = model.take(key) else { return Vec::new() };
    let (at, path) = (field.start(), field.path.clone());
    let Some(mut table) = reader.as_table(field) else { return Vec::new() };
    let mut entries = table.take_rest();
    entries.sort_unstable_by_key(|(_, field)| field.start());
    if entries.len() > PARAMS_MAX {
        reader.report(at, path, format!("more than {PARAMS_MAX} members"));
        return Vec::new();
    }
    let mut params = Vec::new();
    for (name, field) in entries {
        if others.iter().any(|other| other.name == name) {
            reader.error(&field, format!("`{name}` is also in `set_params`, which always wins: remove one of them"));
        } else if may_be_named(reader, &field, &name)
            && let Some((json, toml)) = reader.json(&field)
        {
            params.push(ModelParam { name, json, toml });
        }
    }
    if params.iter().map(|param| param.name.len() + param.json.len()).sum::<usize>() > BYTES_MAX {
        reader.report(at, path, format!("more than {BYTES_MAX} bytes as JSON"));
    }
    params
}

fn may_be_named(reader: &mut Reader<'_>, field: &Field<'_>, name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_plain) {
        reader.error(field, format!("expected a name of 1 to {NAME_MAX} letters, digits, _ and -"));
    } else if OWN.contains(&name) {
        reader.error(field, format!("`{name}` cannot be set here: only the client or Tollgate sets it"));
    } else if BOUNDS.contains(&name) {
        let instead = "use `default_max_tokens`, `reserve_tokens` or `max_output_tokens` in `capabilities`";
        reader.error(field, format!("`{name}` decides reservations: {instead}"));
    } else {
        return true;
    }
    false
}
