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
    cluster::block_on,
    dump::ConnectionsDump,
    flows::{FlowTarget, FlowUpdate, subscribe},
    install::{parse_duration, print_progress},
    manifest,
    output::print_line,
    policy_test,
    source::{CONFIG_DUMP_PATH, Source},
};
use observations::Observations;
use rules::{SuggestOptions, Suggestions};

/// Flags of `ambit policy suggest`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SuggestArgs {
    #[command(flatten)]
    target: FlowTarget,
    /// Only policies of this namespace; may be given several times
    #[arg(short, long)]
    namespace: Vec<String>,
    /// How long to watch, such as 60s or 1h
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
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
        Some(file) => read_flow_log(file)?,
        None => watch_flows(args)?,
    };
    add_open_connections(args, &mut seen)?;
    if seen.is_empty() {
        let error = CliError::new(ErrorKind::NotFound, "no flow was seen that could go on");
        return Err(error.with_hint("--for watches longer; only observed traffic can be allowed"));
    }
    let lab = args.target.target.lab_name(args.target.lab.as_deref());
    let objects = policy_test::load_objects(lab.as_deref(), &args.target.target)?;
    let options = SuggestOptions {
        namespaces: &args.namespace,
        paths: args.paths,
        dry_run: args.dry_run,
        root_namespace: &args.target.target.mesh_namespace,
    };
    let Suggestions { policies, notes } = rules::suggest(&seen, &objects, &options);
    for note in notes {
        print_line(&format!("# {note}"))?;
    }
    for policy in policies {
        let text = serde_saphyr::to_string(&manifest::to_manifest(&policy)).map_err(|error| {
            let what = "a policy cannot be written as YAML";
            CliError::new(ErrorKind::Failed, what).with_source(error.to_string())
        })?;
        print_line(&format!("---\n{}", text.trim_end()))?;
    }
    Ok(())
}

/// Adds the open connections in node proxies' dumps to the observations: a connection opened before the period causes
/// no event until it ends.
fn add_open_connections(
    args: &SuggestArgs,
    observations: &mut Observations,
) -> Result<(), CliError> {
    let place = &args.target;
    let source = Source::any_node_proxy(
        place.target.lab_name(place.lab.as_deref()).as_deref(),
        &place.target,
    );
    for source in source.all_node_proxies()? {
        let dump = ConnectionsDump::parse(&source.request_ok(Method::GET, CONFIG_DUMP_PATH)?)?;
        for pod in dump.workload_state.values() {
            observations.add_open(pod);
        }
    }
    Ok(())
}

/// Reads flow events for the period, and collects the observed traffic.
fn watch_flows(args: &SuggestArgs) -> Result<Observations, CliError> {
    block_on(async {
        let filter = Filter {
            namespaces: args.namespace.clone(),
            ..Filter::default()
        };
        let mut received = subscribe(&args.target, filter).await?;
        let period = args.period.as_secs();
        print_progress(&format!(
            "watching for {period} s; unobserved traffic is not allowed"
        ));
        let end = Instant::now() + args.period;
        let mut seen = Observations::default();
        while let Ok(Some(next)) = timeout_at(end, received.recv()).await {
            match next {
                FlowUpdate::Item(item) => seen.add(&item),
                FlowUpdate::Connected(proxy) => print_progress(&format!("reading {proxy}")),
                FlowUpdate::Disconnected(proxy, why) => {
                    print_progress(&format!("{proxy}: {why}"));
                    seen.add_interruption(&proxy);
                }
            }
        }
        Ok(seen)
    })
}

/// Reads flow events that were recorded in a file, and collects the observed traffic.
fn read_flow_log(file: &PathBuf) -> Result<Observations, CliError> {
    let unreadable = |error: io::Error| {
        let what = format!("cannot read {}", file.display());
        CliError::new(ErrorKind::NotFound, what).with_source(error)
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
            CliError::new(ErrorKind::Usage, what).with_source(error)
        })?;
        seen.add(&item);
    }
    Ok(seen)
}
