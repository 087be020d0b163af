//! Encodes metrics for scrapes, and registers metrics about the process itself.

use std::{
    fmt,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::header;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder},
    metrics::{
        MetricType, TypedMetric,
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};
use tokio::runtime::Handle;

use crate::http::{Request, Response, method_not_allowed, not_found, respond, text};

/// HTTP paths under which metrics are served.
pub const METRICS_PATHS: [&str; 2] = ["/metrics", "/stats/prometheus"];

/// Counter whose name is encoded unchanged: names of Istio's control plane do not end in `_total`, which
/// prometheus-client's counter would append.
#[derive(Clone, Debug, Default)]
pub struct PlainCounter(Arc<AtomicU64>);

impl PlainCounter {
    /// Increments the counter by one.
    pub fn inc(&self) {
        self.inc_by(1);
    }

    /// Increments the counter by any number, also by 0, which makes the series exist.
    pub fn inc_by(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

/// Creates series of a family with the value 0: Prometheus sees no increase in a series that begins with 1.
pub fn start_series<L>(family: &Family<L, PlainCounter>, labels: impl IntoIterator<Item = L>)
where
    L: Clone + Eq + Hash,
{
    for labels in labels {
        family.get_or_create(&labels).inc_by(0);
    }
}

impl TypedMetric for PlainCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for PlainCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.encode_gauge(&self.0.load(Ordering::Relaxed))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Encodes the metrics of a registry in OpenMetrics' text format.
///
/// # Errors
///
/// When a metric cannot be encoded.
pub fn exposition(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}

/// Responds to a scrape on one of [`METRICS_PATHS`], and with 404 to other paths.
pub fn serve_metrics(registry: &Registry, request: &Request) -> Response {
    if !METRICS_PATHS.contains(&request.uri().path()) {
        return not_found();
    }
    if request.method() != http::Method::GET {
        return method_not_allowed("GET");
    }
    let open_metrics = request
        .headers()
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/openmetrics-text"));
    match exposition(registry) {
        Ok(body) if open_metrics => respond(
            200,
            "application/openmetrics-text;charset=utf-8;version=1.0.0",
            body,
        ),
        Ok(body) => respond(200, "text/plain", body),
        Err(fmt::Error) => text(500, "metrics cannot be written\n"),
    }
}

/// Registers `istio_build`, whose labels are the component of the mesh (by Istio's name) and its version.
pub fn register_build(registry: &mut Registry, component: &str, version: &str) {
    // An Info metric would be called istio_build_info; the contract has a gauge.
    let build = Family::<[(String, String); 2], Gauge>::default();
    build
        .get_or_create(&[
            ("component".to_owned(), component.to_owned()),
            ("tag".to_owned(), version.to_owned()),
        ])
        .set(1);
    registry.register("istio_build", "Istio component build info", build);
}

/// Registers metrics of the process: open files, their limit, resident memory, CPU time and panics.
pub fn register_process(registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessMetrics));
}

/// Registers metrics of tokio runtimes, summed up; the label `worker` numbers the workers of all of them.
pub fn register_runtimes(registry: &mut Registry, runtimes: Vec<Handle>) {
    registry.register_collector(Box::new(RuntimeMetrics(runtimes.into())));
}

#[derive(Debug)]
struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let fds = std::fs::read_dir("/proc/self/fd").map(|dir| dir.count().saturating_sub(1));
        let mut gauge = |name: &str, help: &str, value: Option<u64>| match value {
            Some(value) => {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)
            }
            None => Ok(()),
        };
        gauge(
            "process_open_fds",
            "Number of open file descriptors",
            fds.ok().and_then(|fds| u64::try_from(fds).ok()),
        )?;
        gauge(
            "process_max_fds",
            "Maximum number of file descriptors",
            crate::limits::open_file_limit(),
        )?;
        gauge(
            "process_resident_memory_bytes",
            "Resident memory size in bytes",
            resident_bytes(),
        )?;
        let cpu = encoder.encode_descriptor(
            "process_cpu_seconds",
            "CPU time of all threads, in user and system mode",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(cpu_time().as_secs_f64()).encode(cpu)?;
        let help = "Number of panics: each ended one task, a connection's for instance";
        let panics = encoder.encode_descriptor("ambit_panics", help, None, MetricType::Counter)?;
        ConstCounter::new(crate::panics::panic_count()).encode(panics)
    }
}

/// Returns the CPU time that this process has used.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the resident memory of this process in bytes.
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[derive(Debug)]
struct RuntimeMetrics(Arc<[Handle]>);

impl RuntimeMetrics {
    fn sum(&self, of: impl Fn(&Handle) -> usize) -> i64 {
        i64::try_from(self.0.iter().map(of).sum::<usize>()).unwrap_or(i64::MAX)
    }
}

impl Collector for RuntimeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, value) in [
            (
                "tokio_num_workers",
                "Number of worker threads",
                self.sum(|handle| handle.metrics().num_workers()),
            ),
            (
                "tokio_global_queue_depth",
                "Tasks in the global queues",
                self.sum(|handle| handle.metrics().global_queue_depth()),
            ),
            (
                "tokio_num_alive_tasks",
                "Tasks alive",
                self.sum(|handle| handle.metrics().num_alive_tasks()),
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        let workers = || {
            let all = self.0.iter().flat_map(|handle| {
                let metrics = handle.metrics();
                (0..metrics.num_workers()).map(move |worker| (metrics.clone(), worker))
            });
            all.enumerate().map(|(index, (metrics, worker))| {
                ([("worker", index.to_string())], metrics, worker)
            })
        };
        let mut busy = encoder.encode_descriptor(
            "tokio_worker_total_busy_duration_seconds",
            "Time workers were busy",
            None,
            MetricType::Counter,
        )?;
        for (labels, metrics, worker) in workers() {
            let seconds = metrics.worker_total_busy_duration(worker).as_secs_f64();
            ConstCounter::new(seconds).encode(busy.encode_family(&labels)?)?;
        }
        let mut parks = encoder.encode_descriptor(
            "tokio_worker_park_count",
            "Times workers went to sleep",
            None,
            MetricType::Counter,
        )?;
        for (labels, metrics, worker) in workers() {
            let count = metrics.worker_park_count(worker);
            ConstCounter::new(count).encode(parks.encode_family(&labels)?)?;
        }
        let mut unparks = encoder.encode_descriptor(
            "tokio_worker_park_unpark_count",
            "Times workers went to sleep or woke",
            None,
            MetricType::Counter,
        )?;
        for (labels, metrics, worker) in workers() {
            let count = metrics.worker_park_unpark_count(worker);
            ConstCounter::new(count).encode(unparks.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::within;

    use prometheus_client::metrics::{counter::Counter, family::Family};

    use super::*;
    use crate::http::testing::{body_text, get, request};

    fn content_type(response: &Response) -> &str {
        response.headers()[header::CONTENT_TYPE].to_str().unwrap()
    }

    #[test]
    fn the_content_type_follows_accept() {
        let registry = Registry::default();
        let mut scrape = get("/metrics");
        assert_eq!(
            content_type(&serve_metrics(&registry, &scrape)),
            "text/plain"
        );
        scrape.headers_mut().insert(
            header::ACCEPT,
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
                .parse()
                .unwrap(),
        );
        assert_eq!(
            content_type(&serve_metrics(&registry, &scrape)),
            "application/openmetrics-text;charset=utf-8;version=1.0.0"
        );
    }

    #[test]
    fn families_without_samples_are_omitted() {
        let mut registry = Registry::default();
        let family = Family::<[(String, String); 1], Counter>::default();
        registry.register("calls", "Calls", family.clone());
        assert_eq!(
            body_text(serve_metrics(&registry, &get("/stats/prometheus"))),
            "# EOF\n"
        );
        family.get_or_create(&[("url".into(), "a".into())]).inc();
        assert_eq!(
            body_text(serve_metrics(&registry, &get("/metrics"))),
            "# HELP calls Calls.\n# TYPE calls counter\ncalls_total{url=\"a\"} 1\n# EOF\n"
        );
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        let registry = Registry::default();
        assert_eq!(serve_metrics(&registry, &get("/")).status(), 404);
        assert_eq!(
            serve_metrics(&registry, &request("POST", "/metrics")).status(),
            405
        );
    }

    #[tokio::test]
    async fn the_process_and_its_runtimes_are_measured() {
        within(async {
            let mut registry = Registry::default();
            register_process(&mut registry);
            register_runtimes(&mut registry, vec![Handle::current()]);
            let text = body_text(serve_metrics(&registry, &get("/metrics")));
            for name in [
                "\nprocess_open_fds ",
                "\nprocess_max_fds ",
                "\nprocess_resident_memory_bytes ",
                "\ntokio_num_workers 1\n",
                "\ntokio_global_queue_depth ",
                "\ntokio_num_alive_tasks ",
                "\ntokio_worker_total_busy_duration_seconds_total{worker=\"0\"} ",
                "\ntokio_worker_park_count_total{worker=\"0\"} ",
                "\ntokio_worker_park_unpark_count_total{worker=\"0\"} ",
            ] {
                assert!(text.contains(name), "{name:?} is missing in\n{text}");
            }
        })
        .await;
    }
}
