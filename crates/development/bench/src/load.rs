//! Load generators: their commands in a pod, and the parsing of their reports.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};

/// Result of a run of `wrk` or `h2load`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HttpLoad {
    pub(crate) requests_per_second: f64,
    /// Median latency, if the load generator reports it.
    pub(crate) median: Option<Duration>,
    pub(crate) p99: Option<Duration>,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
}

impl HttpLoad {
    /// Adds latencies from `h2load --log-file`: on each line start time, status and duration in microseconds.
    pub(crate) fn with_latencies(self, log: &str) -> Result<Self> {
        let time = |line: &str| line.split('\t').nth(2)?.parse().ok();
        let mut times: Vec<u64> = log.lines().filter_map(time).collect();
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied();
        let of = |share| at(share).context("h2load wrote no times of requests");
        Ok(Self {
            median: Some(Duration::from_micros(of(50)?)),
            p99: Some(Duration::from_micros(of(99)?)),
            ..self
        })
    }
}

/// Returns a `wrk` command: one thread, `connections` connections, a duration of `seconds`.
pub(crate) fn wrk(connections: u32, seconds: u32, keep_alive: bool, url: &str) -> Vec<String> {
    let mut command: Vec<String> = ["wrk", "--latency", "-t1", "--timeout", "10s"]
        .map(Into::into)
        .into();
    command.push(format!("-c{connections}"));
    command.push(format!("-d{seconds}s"));
    if !keep_alive {
        command.extend(["-H".into(), "Connection: close".into()]);
    }
    command.push(url.into());
    command
}

/// Parses the output of `wrk --latency`.
pub(crate) fn parse_wrk(output: &str) -> Result<HttpLoad> {
    let line = |label: &str| {
        output
            .lines()
            .find_map(|line| line.trim().strip_prefix(label).map(str::trim))
            .with_context(|| format!("no {label:?} in what wrk printed:\n{output}"))
    };
    let requests = output
        .lines()
        .find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok())
        .context("wrk printed no count of requests")?;
    let errors = output
        .lines()
        .filter(|line| line.contains("Socket errors") || line.contains("Non-2xx"))
        .flat_map(|line| {
            line.split(|c: char| !c.is_ascii_digit())
                .filter_map(|n| n.parse::<u64>().ok())
        })
        .sum();
    Ok(HttpLoad {
        requests_per_second: line("Requests/sec:")?.parse()?,
        median: Some(wrk_time(line("50%")?)?),
        p99: Some(wrk_time(line("99%")?)?),
        requests,
        errors,
    })
}

/// Parses a time in the format of wrk, such as `88.00us`, `1.10ms` or `2.00s`.
fn wrk_time(text: &str) -> Result<Duration> {
    let unit = text
        .find(|c: char| c.is_ascii_alphabetic())
        .context("a time without a unit")?;
    let (number, unit) = text.split_at(unit);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => anyhow::bail!("{text:?} is no time wrk prints"),
    };
    Ok(Duration::from_secs_f64(number.parse::<f64>()? * scale))
}

/// Returns an `h2load` command: one thread, `connections` connections with ten concurrent requests each; the time of
/// each request is written to the file `times`.
pub(crate) fn h2load(connections: u32, seconds: u32, times: &Path, url: &str) -> Vec<String> {
    let mut command: Vec<String> = ["h2load", "-t1", "-m10"].map(Into::into).into();
    command.push(format!("-c{connections}"));
    command.push(format!("-D{seconds}"));
    command.push(format!("--log-file={}", times.display()));
    command.push(url.into());
    command
}

/// Path of the gRPC method that the load calls with an empty request message, served by the conformance tests' echo
/// server.
pub(crate) const GRPC_METHOD: &str = "/proto.EchoTestService/Echo";

/// Returns an `h2load` command for unary calls of [`GRPC_METHOD`]; writes the request message into the directory.
pub(crate) fn grpc(
    connections: u32,
    seconds: u32,
    directory: &Path,
    times: &Path,
    url: &str,
) -> Result<Vec<String>> {
    // Not compressed, no bytes.
    let message = directory.join("message");
    fs::write(&message, [0; 5])?;
    let mut command = h2load(connections, seconds, times, url);
    command.push(format!("--data={}", message.display()));
    for header in ["content-type: application/grpc", "te: trailers"] {
        command.push(format!("--header={header}"));
    }
    Ok(command)
}

/// Parses the output of `h2load -D`.
pub(crate) fn parse_h2load(output: &str) -> Result<HttpLoad> {
    let line = |label: &str| {
        let mut lines = output.lines();
        let found = lines.find_map(|line| line.strip_prefix(label));
        found.with_context(|| format!("no {label:?} in what h2load printed:\n{output}"))
    };
    let rate = line("finished in ")?
        .split(", ")
        .find_map(|part| part.strip_suffix(" req/s"));
    // `requests: 10 total, 10 started, 10 done, 10 succeeded, 0 failed, 0 errored, 0 timeout`
    let counted = |what: &str| -> Result<u64> {
        let count = line("requests: ")?
            .split(", ")
            .find_map(|part| part.strip_suffix(what));
        let count = count.with_context(|| format!("h2load counted no{what}:\n{output}"))?;
        Ok(count.parse()?)
    };
    // `status codes: 10 2xx, 0 3xx, 0 4xx, 0 5xx`
    let refused = line("status codes: ")?
        .split(", ")
        .filter(|part| !part.ends_with(" 2xx"))
        .filter_map(|part| part.split(' ').next()?.parse::<u64>().ok())
        .sum::<u64>();
    Ok(HttpLoad {
        requests_per_second: rate.context("h2load printed no rate")?.parse()?,
        median: None,
        p99: None,
        requests: counted(" succeeded")?,
        errors: counted(" failed")? + refused,
    })
}

/// Returns an `iperf3` client command.
pub(crate) fn iperf3(server: &str, streams: u32, seconds: u32) -> Vec<String> {
    [
        "iperf3",
        "--json",
        "-c",
        server,
        "-P",
        &streams.to_string(),
        "-t",
        &seconds.to_string(),
    ]
    .map(Into::into)
    .into()
}

/// Result of a run of `iperf3`, as measured at the receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BulkLoad {
    pub(crate) gigabits_per_second: f64,
    pub(crate) gigabytes: f64,
}

/// Parses the output of `iperf3 --json`.
pub(crate) fn parse_iperf3(output: &str) -> Result<BulkLoad> {
    let json: serde_json::Value = serde_json::from_str(output).context("iperf3 printed no JSON")?;
    let number = |key: &str| {
        json.pointer(&format!("/end/sum_received/{key}"))
            .and_then(serde_json::Value::as_f64)
            .with_context(|| {
                format!(
                    "iperf3 measured nothing: {}",
                    json.get("error").unwrap_or(&serde_json::Value::Null)
                )
            })
    };
    Ok(BulkLoad {
        gigabits_per_second: number("bits_per_second")? / 1e9,
        gigabytes: number("bytes")? / 1e9,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_wrk_is_read() {
        let output = "Running 2s test @ http://10.0.0.1:80/\n  1 threads and 32 connections\n  \
            Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency     1.10ms  \n  \
            Latency Distribution\n     50%   88.00us\n     75%    1.40ms\n     90%    2.00ms\n     \
            99%    4.00ms\n  52000 requests in 2.00s, 8.00MB read\n  \
            Socket errors: connect 0, read 3, write 0, timeout 0\nRequests/sec:  26000.50\n";
        let load = parse_wrk(output).unwrap();
        assert_eq!(load.median, Some(Duration::from_micros(88)));
        assert_eq!(load.p99, Some(Duration::from_millis(4)));
        assert_eq!((load.requests, load.errors), (52000, 3));
        assert!((load.requests_per_second - 26000.5).abs() < 1e-9);
    }

    #[test]
    fn a_report_of_h2load_is_read() {
        let output = "starting benchmark...\nfinished in 5.00s, 12.40 req/s, 1.31KB/s\n\
            requests: 70 total, 66 started, 62 done, 60 succeeded, 2 failed, 2 errored, 0 timeout\n\
            status codes: 60 2xx, 0 3xx, 1 4xx, 2 5xx\n";
        let load = parse_h2load(output).unwrap();
        assert_eq!((load.requests, load.errors), (60, 5));
        assert!((load.requests_per_second - 12.4).abs() < 1e-9);
        assert!(parse_h2load("nothing").is_err());
        let log = "1700000000\t200\t30\n1700000001\t200\t10\n1700000002\t200\t20\n";
        let timed = load.with_latencies(log).unwrap();
        assert_eq!(timed.median, Some(Duration::from_micros(20)));
        assert_eq!(timed.p99, Some(Duration::from_micros(30)));
        assert!(load.with_latencies("").is_err());
    }

    #[test]
    fn a_failed_iperf3_is_an_error() {
        let error = parse_iperf3(r#"{"error":"unable to connect","end":{}}"#).unwrap_err();
        assert!(error.to_string().contains("unable to connect"), "{error}");
    }
}
