//! `ambit flows`: live connections and requests, from node proxies and waypoints of a lab or a cluster.

mod control_plane;
mod follow;
mod proxies;
mod screen;
mod target;
pub(crate) mod text;
mod view;

use std::{io::IsTerminal as _, time::Duration};

use ambit_flow::{Filter, PeerFilter, StreamItem};
use clap::{Args, ValueEnum};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    CliError, ErrorKind,
    cluster::block_on,
    install::{parse_duration, print_progress},
    output::print_line,
};
pub(crate) use follow::FlowUpdate;
use proxies::Proxies;
pub(crate) use target::FlowTarget;

/// Maximum number of events that are queued for the output.
const MAX_QUEUED_EVENTS: usize = 4096;

/// Flags of `ambit flows`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    target: FlowTarget,
    /// Only refused and failed ones
    #[arg(long)]
    denied: bool,
    /// Only plaintext connections and requests
    #[arg(long)]
    plaintext: bool,
    /// Only from this client: NAMESPACE/NAME (pod, Deployment), NAMESPACE/, an address, or a SPIFFE id
    #[arg(long)]
    from: Option<String>,
    /// Only to this server: as --from, or a service
    #[arg(long)]
    to: Option<String>,
    /// Only from or to this namespace; may be given several times
    #[arg(short, long)]
    namespace: Vec<String>,
    /// End after this time, such as 30s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    period: Option<Duration>,
    /// Format of the output; a screen to look around in, if the output is a terminal
    #[arg(short, long, value_enum)]
    output: Option<FlowFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlowFormat {
    /// A screen with filter, order, pause, and one flow in detail
    Screen,
    /// A line an event
    Text,
    /// A JSON object an event, one a line
    Json,
}

impl FlowsArgs {
    fn filter(&self) -> Result<Filter, CliError> {
        let party = |flag: &str, text: &Option<String>| -> Result<Option<PeerFilter>, CliError> {
            let parsed = text.as_ref().map(|text| text.parse()).transpose();
            parsed.map_err(|error: ambit_flow::FilterError| {
                CliError::new(ErrorKind::Usage, format!("{flag}: {error}"))
            })
        };
        Ok(Filter {
            only_refused: self.denied,
            only_plaintext: self.plaintext,
            client: party("--from", &self.from)?,
            server: party("--to", &self.to)?,
            namespaces: self.namespace.clone(),
            ..Filter::default()
        })
    }

    fn format(&self) -> FlowFormat {
        self.output
            .unwrap_or_else(|| match std::io::stdout().is_terminal() {
                true => FlowFormat::Screen,
                false => FlowFormat::Text,
            })
    }
}

/// Shows flows until the user ends the program, or the period is over.
pub(crate) fn run(args: &FlowsArgs) -> Result<(), CliError> {
    let filter = args.filter()?;
    block_on(async {
        let received = subscribe(&args.target, filter).await?;
        let end = args.period.map(|period| Instant::now() + period);
        match args.format() {
            FlowFormat::Screen => screen::run(received, end).await,
            FlowFormat::Text => print_events(received, end, text::format_item).await,
            FlowFormat::Json => print_events(received, end, text::to_json).await,
        }
    })
}

/// Streams events from all node proxies and waypoints of a lab or cluster, including those that start later.
///
/// # Errors
/// If the proxies of the lab or cluster cannot be listed, or there are none.
pub(crate) async fn subscribe(
    place: &FlowTarget,
    filter: Filter,
) -> Result<mpsc::Receiver<FlowUpdate>, CliError> {
    let proxies = Proxies::connect(place).await?;
    proxies.check(&filter).await?;
    let all = proxies.list().await?;
    if all.is_empty() {
        let what = "there is no node proxy whose flows could be read";
        return Err(
            CliError::new(ErrorKind::NotFound, what).with_hint("`ambit status` shows what runs")
        );
    }
    let (sender, received) = mpsc::channel(MAX_QUEUED_EVENTS);
    ambit_rt::spawn("flows", follow::follow(proxies, filter, sender));
    Ok(received)
}

/// Prints flow events as they arrive, until the end of the period.
async fn print_events(
    mut received: mpsc::Receiver<FlowUpdate>,
    end: Option<Instant>,
    line: impl Fn(&StreamItem) -> Option<String>,
) -> Result<(), CliError> {
    while let Some(next) = next_update(&mut received, end).await {
        match next {
            FlowUpdate::Item(item) => {
                if let Some(line) = line(&item) {
                    print_line(&line)?;
                }
            }
            FlowUpdate::Connected(proxy) => print_progress(&format!("reading {proxy}")),
            FlowUpdate::Disconnected(proxy, why) => print_progress(&format!("{proxy}: {why}")),
        }
    }
    Ok(())
}

/// Waits for the next event; returns `None` at the end of the period, or if no more events come.
async fn next_update(
    received: &mut mpsc::Receiver<FlowUpdate>,
    end: Option<Instant>,
) -> Option<FlowUpdate> {
    match end {
        Some(end) => tokio::time::timeout_at(end, received.recv()).await.ok()?,
        None => received.recv().await,
    }
}
