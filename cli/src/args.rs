//! The program's options: what can be said on the command line, and one clear line for what cannot.

mod path;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use tensortier::storage::units::{Bytes, Count};

pub(crate) use path::PathArg;
pub(crate) use path::PathKind;

/// Keeps tensors that do not fit into memory on storage paths, and trains them there.
#[derive(Debug, Clone, Parser)]
#[command(name = "tensortier", version, max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What the program does.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Run AdamW steps over a model whose optimizer state lives on storage paths.
    Adam(Box<AdamArgs>),
    /// List what earlier runs left behind on storage paths.
    Ls(LsArgs),
    /// Remove what earlier runs left behind and no living process owns.
    Gc(GcArgs),
}

/// Options of `tensortier adam`.
#[derive(Debug, Clone, Args)]
#[command(
    group = ArgGroup::new("model").required(true).args(["weights", "params"]),
    after_help = ADAM_EXAMPLES
)]
pub(crate) struct AdamArgs {
    /// Take the weights of this safetensors file (F32, F16 or BF16)
    #[arg(long, value_name = "FILE", help_heading = MODEL)]
    pub(crate) weights: Option<PathBuf>,
    /// Make up a GPT-like model of this many parameters, for example 500M
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, help_heading = MODEL)]
    pub(crate) params: Option<Count>,
    /// Read the file through a memory map instead of direct reads
    #[arg(long, conflicts_with = "params", help_heading = MODEL)]
    pub(crate) map: bool,
    /// Type of the weights of a made-up model
    #[arg(long, value_name = "TYPE", default_value = "bf16", conflicts_with = "weights", help_heading = MODEL)]
    pub(crate) weights_dtype: FloatType,
    /// Type of the gradients
    #[arg(long, value_name = "TYPE", default_value = "bf16", help_heading = MODEL)]
    pub(crate) grads: FloatType,
    /// Number from which made-up weights and gradients follow
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = whole, allow_negative_numbers = true, help_heading = MODEL)]
    pub(crate) seed: u64,
    /// Write the updated weights to this safetensors file
    #[arg(long, value_name = "FILE", help_heading = MODEL)]
    pub(crate) save: Option<PathBuf>,

    /// Directory for optimizer state, repeatable; options follow its name after commas:
    /// kind=nvme|remote, read=RATE, write=RATE (limits, for example 1.5GB/s), quota=SIZE,
    /// deadline=SECONDS (after which a path that answers nothing is given up),
    /// processes=COUNT|any|auto (how many processes use its device at one time)
    /// [default: a scratch directory under /var/tmp]
    #[arg(long = "path", value_name = "DIR[,OPTION=VALUE...]", help_heading = PLACES)]
    pub(crate) paths: Vec<PathArg>,
    /// Memory for optimizer state, kept strictly
    #[arg(long, value_name = "SIZE", default_value = "1GiB", allow_negative_numbers = true, help_heading = PLACES)]
    pub(crate) host_memory: Bytes,
    /// Parameters per subgroup, the unit that moves between memory and paths: auto or a count (8Mi)
    #[arg(long, value_name = "COUNT", default_value = "auto", allow_negative_numbers = true, help_heading = PLACES)]
    pub(crate) subgroup: Subgroup,
    /// Which state is kept: weights (8 B per parameter, fp32 weights are the master), fp32 (12 B),
    /// split (10 B, bf16 weights are half of the master); auto takes weights for fp32, else fp32
    #[arg(long, value_name = "STATE", default_value = "auto", help_heading = PLACES)]
    pub(crate) state: StateArg,
    /// Direction of each step over the subgroups
    #[arg(long, value_name = "ORDER", default_value = "alternate", help_heading = PLACES)]
    pub(crate) order: OrderArg,
    /// How the subgroup that leaves memory is chosen
    #[arg(long, value_name = "POLICY", default_value = "schedule", help_heading = PLACES)]
    pub(crate) evict: EvictArg,
    /// Subgroups read ahead of the one that is updated [default: what memory and paths allow]
    #[arg(long, value_name = "NUMBER", value_parser = whole32, allow_negative_numbers = true, help_heading = PLACES)]
    pub(crate) read_ahead: Option<u32>,
    /// Part of the subgroups that never leaves memory, from 0 to 1
    #[arg(long, value_name = "PART", default_value = "0", value_parser = part, allow_negative_numbers = true, help_heading = PLACES)]
    pub(crate) resident: f64,
    /// How subgroups are spread over paths: whole, or each cut over all of them
    #[arg(long, value_name = "RULE", default_value = "whole", help_heading = PLACES)]
    pub(crate) placement: PlacementArg,
    /// How files are read and written
    #[arg(long, value_name = "ENGINE", default_value = "auto", help_heading = PLACES)]
    pub(crate) engine: EngineArg,
    /// Threads that compute [default: one per core]
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one, allow_negative_numbers = true, help_heading = PLACES)]
    pub(crate) threads: Option<u64>,

    /// Steps to run
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = at_least_one, allow_negative_numbers = true, help_heading = ADAMW)]
    pub(crate) steps: u64,
    /// Learning rate
    #[arg(long, value_name = "X", default_value = "1e-3", value_parser = not_negative, allow_negative_numbers = true, help_heading = ADAMW)]
    pub(crate) lr: f64,
    /// Decay of the first moment
    #[arg(long, value_name = "X", default_value = "0.9", value_parser = below_one, allow_negative_numbers = true, help_heading = ADAMW)]
    pub(crate) beta1: f64,
    /// Decay of the second moment
    #[arg(long, value_name = "X", default_value = "0.999", value_parser = below_one, allow_negative_numbers = true, help_heading = ADAMW)]
    pub(crate) beta2: f64,
    /// Term that keeps the denominator from zero
    #[arg(long, value_name = "X", default_value = "1e-8", value_parser = not_negative, allow_negative_numbers = true, help_heading = ADAMW)]
    pub(crate) eps: f64,
    /// Decoupled weight decay
    #[arg(long, value_name = "X", default_value = "1e-2", value_parser = not_negative, allow_negative_numbers = true, help_heading = ADAMW)]
    pub(crate) weight_decay: f64,

    /// Clip the gradients of all parameters together to this norm
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true, help_heading = ADAMW)]
    pub(crate) max_norm: Option<f64>,

    /// Run the same steps wholly in memory as well and compare every bit
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) verify: bool,
    /// Run the steps in the way of ZeRO-3 and then with one mechanism after the other, to see what each
    /// brings
    #[arg(long, conflicts_with_all = ["verify", "save", "state", "order", "evict", "read_ahead", "resident"], help_heading = OUTPUT)]
    pub(crate) ablate: bool,
    /// Print the report as one JSON object (docs/json.md) instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

/// Options of `tensortier ls`.
#[derive(Debug, Clone, Args)]
pub(crate) struct LsArgs {
    /// Directories that were given as --path
    #[arg(value_name = "DIR", default_value = DEFAULT_DIR)]
    pub(crate) dirs: Vec<PathBuf>,
}

/// Options of `tensortier gc`.
#[derive(Debug, Clone, Args)]
pub(crate) struct GcArgs {
    /// Directories that were given as --path
    #[arg(value_name = "DIR", default_value = DEFAULT_DIR)]
    pub(crate) dirs: Vec<PathBuf>,
    /// Also remove what cannot be proved ownerless because locks do not work there
    #[arg(long)]
    pub(crate) force: bool,
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Where state goes if no path is given.
pub(crate) const DEFAULT_DIR: &str = "/var/tmp";

const MODEL: &str = "Model";
const PLACES: &str = "Memory and storage";
const ADAMW: &str = "AdamW";
const OUTPUT: &str = "Output";

const ADAM_EXAMPLES: &str = "\
Examples:
  tensortier adam --params 500M --host-memory 1GiB --path /nvme0 --path /nvme1
  tensortier adam --weights model.safetensors --host-memory 48MiB --verify
  tensortier adam --params 500M --path /nvme0 --path /nvme1 --ablate
  tensortier adam --params 2G --path /nvme --path /shared,kind=remote,write=600MB/s,quota=100GiB

Exit codes: 0 done, 1 verification found a difference, 2 bad input or failure, 130 interrupted";

/// A floating-point type of weights or gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FloatType {
    Bf16,
    Fp16,
    Fp32,
}

/// Which planes the state has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
    // `Weights` for fp32 weights, else `Fp32`.
    Auto,
    Weights,
    Fp32,
    Split,
}

/// The direction of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    Alternate,
    Ascending,
    Descending,
}

/// How a victim is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvictArg {
    Schedule,
    Lru,
}

/// How subgroups are spread over paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementArg {
    Whole,
    Stripe,
}

/// How files are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    Auto,
    Uring,
    Threads,
}

/// Parameters per subgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subgroup {
    Auto,
    Of(Count),
}

impl FromStr for Subgroup {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Subgroup::Auto);
        }
        match text.parse() {
            Ok(Count(0)) => {
                Err("a subgroup has at least one parameter; write for example 8Mi".into())
            }
            Ok(count) => Ok(Subgroup::Of(count)),
            Err(_) => Err("neither auto nor a count; write for example 8Mi".into()),
        }
    }
}

fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "not a whole number from 0 to 2^64 - 1; write for example 42".into())
}

fn whole32(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "not a whole number from 0 on; write for example 4".into())
}

fn part(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "not a number from 0 to 1; write for example 0.25".into())
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("not a whole number of at least 1; write for example 5".into()),
        Ok(number) => Ok(number),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "not a number of at least 0; write for example 1e-3".into())
}

fn below_one(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..1.0).contains(number));
    number.ok_or_else(|| "not a number from 0 to below 1; write for example 0.9".into())
}

impl AdamArgs {
    /// Refuses what is well formed but makes no sense.
    fn check(&self) -> Result<(), String> {
        if self.params == Some(Count(0)) {
            return Err(
                "--params 0: a model needs at least one parameter; write for example 500M".into()
            );
        }
        if self.host_memory == Bytes(0) {
            return Err(
                "--host-memory 0: a budget needs some memory; write for example 1GiB".into()
            );
        }
        let same = |path: &PathArg| self.paths.iter().filter(|other| other.dir == path.dir).count();
        if let Some(twice) = self.paths.iter().find(|path| same(path) > 1) {
            return Err(format!(
                "--path {}: given twice; give each directory once",
                twice.dir.display()
            ));
        }
        if self.ablate && self.steps < 2 {
            return Err("--ablate: needs --steps 2 at least; the first only warms up".into());
        }
        Ok(())
    }
}

/// Reads a command line.
///
/// # Errors
/// What is to be printed instead of running, and with which exit code.
pub(crate) fn parse<I, T>(line: I) -> Result<Cli, Refusal>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let cli = Cli::try_parse_from(line).map_err(|error| Refusal::from_clap(&error))?;
    if let Command::Adam(args) = &cli.command {
        args.check().map_err(Refusal::Wrong)?;
    }
    Ok(cli)
}

/// Why a command line does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Help or the version was asked for: print it, all is well.
    Asked(String),
    /// Something is wrong, in one line.
    Wrong(String),
}

impl Refusal {
    /// clap words an error over several lines with the usage below; one line is easier to find in a
    /// log and says as much.
    fn from_clap(error: &clap::Error) -> Refusal {
        let text = error.render().to_string();
        if !error.use_stderr() {
            return Refusal::Asked(text);
        }
        if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return Refusal::Wrong("no command given; try tensortier --help".into());
        }
        let told =
            |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut one = String::new();
        for line in lines.take_while(told) {
            let line = line.strip_prefix("error: ").unwrap_or(line);
            let joint = match one.chars().last() {
                None => "",
                Some(':') => " ",
                // clap puts what may be written into brackets on a line of its own.
                Some(_) if line.starts_with('[') => " ",
                Some(_) => "; ",
            };
            one.push_str(joint);
            one.push_str(line);
        }
        Refusal::Wrong(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adam(line: &str) -> Result<AdamArgs, Refusal> {
        let words = ["tensortier", "adam"].into_iter().chain(line.split_whitespace());
        match parse(words)?.command {
            Command::Adam(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn refused(line: &str, parts: &[&str]) {
        let Err(Refusal::Wrong(text)) = adam(line) else { panic!("{line} was taken") };
        assert!(!text.contains('\n'), "{text}");
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_help() {
        let args = adam("--params 500M").unwrap();
        assert_eq!(args.params, Some(Count(500_000_000)));
        assert_eq!((args.host_memory, args.steps, args.seed), (Bytes(1 << 30), 5, 0));
        assert_eq!((args.subgroup, args.state), (Subgroup::Auto, StateArg::Auto));
        assert_eq!((args.weights_dtype, args.grads), (FloatType::Bf16, FloatType::Bf16));
        assert_eq!((args.order, args.evict), (OrderArg::Alternate, EvictArg::Schedule));
        assert_eq!((args.engine, args.threads), (EngineArg::Auto, None));
        let hyper = [args.lr, args.beta1, args.beta2, args.eps, args.weight_decay];
        assert_eq!(hyper, [1e-3, 0.9, 0.999, 1e-8, 1e-2]);
        assert!(args.paths.is_empty() && !args.verify && !args.json && !args.map);
    }

    #[test]
    fn what_is_misspelt_is_named_with_its_option_and_a_remedy() {
        refused("--params 8Q", &["--params", "8Q", "write for example 500M"]);
        refused("--params 500M --host-memory 1Gb", &["--host-memory", "1Gb", "1.5GB"]);
        refused(
            "--params 500M --subgroup 8MiB",
            &["--subgroup", "8MiB", "neither auto nor a count"],
        );
        refused("--params 500M --subgroup 0", &["--subgroup", "at least one parameter"]);
        refused("--params 500M --steps 0", &["--steps", "at least 1"]);
        refused("--params 500M --steps x", &["--steps", "'x'", "at least 1"]);
        refused("--params 500M --beta1 1", &["--beta1", "below 1"]);
        refused("--params 500M --lr nan", &["--lr", "nan", "at least 0"]);
        refused("--params 500M --state fp64", &["--state", "fp64", "possible values: auto"]);
        refused("--params 500M --step 3", &["--step", "similar argument exists: '--steps'"]);
        refused("--params 500M extra", &["unexpected argument 'extra'"]);
    }

    #[test]
    fn a_bad_path_is_named_with_its_option() {
        refused("--params 1 --path /a,read=1.5GBs", &["--path", "read:", "1.5GBs", "600MB/s"]);
        refused("--params 1 --path /a --path /a", &["--path /a: given twice"]);
        assert_eq!(adam("--params 1 --path /a --path /b").unwrap().paths.len(), 2);
        refused("--params 1 --resident 1.5", &["--resident", "from 0 to 1"]);
        refused("--params 1 --read-ahead -1", &["--read-ahead", "whole number"]);
        refused("--params 1 --ablate --steps 1", &["--ablate", "--steps 2"]);
        refused("--params 1 --ablate --verify", &["--ablate", "--verify"]);
    }

    #[test]
    fn the_model_is_given_exactly_once() {
        refused("", &["--weights <FILE>", "--params <COUNT>"]);
        refused("--params 1 --weights w", &["cannot be used with"]);
        refused("--params 0", &["--params 0", "at least one parameter"]);
        refused("--params 1 --map", &["--map", "cannot be used with"]);
        refused("--weights w --weights-dtype fp16", &["--weights-dtype", "cannot be used with"]);
        refused("--params 1 --host-memory 0", &["--host-memory 0"]);
    }

    #[test]
    fn help_and_the_other_commands_are_there() {
        let Err(Refusal::Asked(help)) = adam("--help") else { panic!() };
        for part in ["Memory and storage:", "AdamW:", "Examples:", "--weight-decay", "Exit codes"] {
            assert!(help.contains(part), "{help}");
        }
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
        let Command::Ls(ls) = parse(["tensortier", "ls"]).unwrap().command else { panic!() };
        assert_eq!(ls.dirs, [PathBuf::from(DEFAULT_DIR)]);
        let line = ["tensortier", "gc", "/a", "/b", "--dry-run"];
        let Command::Gc(gc) = parse(line).unwrap().command else { panic!() };
        assert_eq!((gc.dirs.len(), gc.dry_run, gc.force), (2, true, false));
        let none = parse(["tensortier"]).unwrap_err();
        assert_eq!(none, Refusal::Wrong("no command given; try tensortier --help".into()));
    }
}
