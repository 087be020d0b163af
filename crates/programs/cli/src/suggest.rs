//! `ambit policy suggest`: suggests the narrowest AuthorizationPolicies that allow the traffic of a period, from flow
//! events.

mod observations;
mod rules;

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    path::PathBuf,
    time::Duration,
};

use ambit_flow::{Filter, StreamItem};
use clap::Args;
use hyper::Method;
use tokio::time::{Instant, timeout_at};

use crate::{
    CliError, ErrorKind,
    cluster::wait,
    dump::OpenDump,
    flows::{FlowPlace, Received, subscribe},
    install::{duration, progress},
    manifest,
    output::print_line,
    rehearsal,
    source::{DUMP, Source},
};
use observations::Observations;
use rules::{Options, Suggestions};

/// Flags of `ambit policy suggest`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SuggestArgs {
    #[command(flatten)]
    place: FlowPlace,
    /// Only policies of this namespace; may be given several times
    #[arg(short, long)]
    namespace: Vec<String>,
    /// How long to watch, such as 60s or 1h
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = duration)]
    period: Duration,
    /// Flows that `ambit flows -o json` has written, instead of watching; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "period")]
    file: Option<PathBuf>,
    /// Paths of requests, too, where a client uses at most twenty
    #[arg(long)]
    paths: bool,
    /// Dry-run policies: they refuse no caller, and count those that they would refuse
    #[arg(long)]
    dry_run: bool,
}

/// Prints the suggested policies, with notes as comments.
pub(crate) fn run(args: &SuggestArgs) -> Result<(), CliError> {
    let mut seen = match &args.file {
        Some(file) => read(file)?,
        None => watch(args)?,
    };
    add_open(args, &mut seen)?;
    if seen.is_empty() {
        let error = CliError::new(ErrorKind::NotFound, "no flow was seen that could go on");
        return Err(error.hint("--for watches longer; only observed traffic can be allowed"));
    }
    let lab = args.place.target.lab(args.place.lab.as_deref());
    let objects = rehearsal::objects(lab.as_deref(), &args.place.target)?;
    let options = Options {
        namespaces: &args.namespace,
        paths: args.paths,
        dry_run: args.dry_run,
        root_namespace: &args.place.target.mesh_namespace,
    };
    let Suggestions { policies, notes } = rules::suggest(&seen, &objects, &options);
    for note in notes {
        print_line(&format!("# {note}"))?;
    }
    for policy in policies {
        let text = serde_saphyr::to_string(&manifest::of(&policy)).map_err(|error| {
            let what = "a policy cannot be written as YAML";
            CliError::new(ErrorKind::Failed, what).because(error.to_string())
        })?;
        print_line(&format!("---\n{}", text.trim_end()))?;
    }
    Ok(())
}

/// Adds the open connections of node proxies' dumps: connections from before the period cause no event until they end.
fn add_open(args: &SuggestArgs, seen: &mut Observations) -> Result<(), CliError> {
    let place = &args.place;
    let source = Source::any(
        place.target.lab(place.lab.as_deref()).as_deref(),
        &place.target,
    );
    for source in source.all()? {
        let dump = OpenDump::parse(&source.succeed(Method::GET, DUMP)?)?;
        for pod in dump.workload_state.values() {
            seen.add_open(pod);
        }
    }
    Ok(())
}

/// Reads flow events for the period, and collects the observed traffic.
fn watch(args: &SuggestArgs) -> Result<Observations, CliError> {
    wait(async {
        let filter = Filter {
            namespaces: args.namespace.clone(),
            ..Filter::default()
        };
        let mut received = subscribe(&args.place, filter).await?;
        let period = args.period.as_secs();
        progress(&format!(
            "watching for {period} s; unobserved traffic is not allowed"
        ));
        let end = Instant::now() + args.period;
        let mut seen = Observations::default();
        while let Ok(Some(next)) = timeout_at(end, received.recv()).await {
            match next {
                Received::Item(item) => seen.add(&item),
                Received::Began(proxy) => progress(&format!("reading {proxy}")),
                Received::Ended(proxy, why) => {
                    progress(&format!("{proxy}: {why}"));
                    seen.interrupted(&proxy);
                }
            }
        }
        Ok(seen)
    })
}

/// Reads flow events that were recorded in a file, and collects the observed traffic.
fn read(file: &PathBuf) -> Result<Observations, CliError> {
    let unreadable = |error: io::Error| {
        let what = format!("cannot read {}", file.display());
        CliError::new(ErrorKind::NotFound, what).because(error)
    };
    let lines: Box<dyn io::BufRead> = match file.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(BufReader::new(fs::File::open(file).map_err(unreadable)?)),
    };
    let mut seen = Observations::default();
    for (number, line) in lines.lines().enumerate() {
        let line = line.map_err(unreadable)?;
        if line.trim().is_empty() {
            continue;
        }
        let item: StreamItem = serde_json::from_str(&line).map_err(|error| {
            let what = format!("{}, line {}: no flow event", file.display(), number + 1);
            CliError::new(ErrorKind::Usage, what).because(error)
        })?;
        seen.add(&item);
    }
    Ok(seen)
}
