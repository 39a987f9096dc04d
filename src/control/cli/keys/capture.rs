//! `tollgate capture`: has running gateways write the traffic of one key to a file, for a limited time.

use super::listing::KeyLine;
use super::lookup::find;
use super::options::parse_capture;
use super::used::Used;
use super::{Actor, SetArgs, set_in};
use crate::cli::args::ConfigArg;
use crate::cli::load::{self, Secrets};
use crate::cli::output::{Failure, clean, print_json, remark};
use crate::cli::store;
use crate::policy::window::iso;
use clap::Args;

/// `tollgate capture`.
#[derive(Args, Debug)]
pub struct CaptureArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Id (after `live_`) or unique name of the key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// Duration or date, at most 7d ahead; 0 ends it
    #[arg(long = "for", value_name = "TIME", default_value = "1h", allow_hyphen_values = true)]
    pub time: String,
    /// Print JSON: the changed record
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let time =
        parse_capture(&args.time).map_err(|text| Failure::misused(format!("--for {}: {text}", clean(&args.time))))?;
    let (path, high) = (load::find(&args.config)?, load::load(&args.config, Secrets::Optional)?);
    let change = SetArgs { capture: Some(time), ..SetArgs::default() };
    let now = change.present(&high)?;
    let record = set_in(&high, &find(&high, &args.key)?.id, &change, &Actor::COMMAND, now)?;
    let (id, name, until) = (record.id, clean(&record.name), record.capture);
    if args.json {
        return print_json(&KeyLine::new(record, &high, &Used::default(), now));
    }
    let file = store::spill_folder(&high, Some(&path)).capture(&id);
    remark(&match until {
        Some(until) => format!(
            "requests and responses of key {id} for {name} are written to {} until {}; they contain prompts",
            file.display(),
            iso(until)
        ),
        None if file.exists() => format!("nothing more of key {id} for {name} is captured; {} stays", file.display()),
        None => format!("nothing of key {id} for {name} is captured"),
    });
    Ok(())
}
