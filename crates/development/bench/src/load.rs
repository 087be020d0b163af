//! The load generators: their commands in a pod, and the parsing of their reports.

use std::time::Duration;

use anyhow::{Context, Result};

/// What `wrk` measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HttpLoad {
    pub(crate) requests_per_second: f64,
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
}

/// A `wrk` command: one thread, `connections` connections, `seconds` long.
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
        median: wrk_time(line("50%")?)?,
        p99: wrk_time(line("99%")?)?,
        requests,
        errors,
    })
}

/// A time as wrk prints it: `88.00us`, `1.10ms`, `2.00s`.
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

/// An `iperf3` client command.
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

/// What `iperf3` measured at the receiver.
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
        assert_eq!(load.median, Duration::from_micros(88));
        assert_eq!(load.p99, Duration::from_millis(4));
        assert_eq!((load.requests, load.errors), (52000, 3));
        assert!((load.requests_per_second - 26000.5).abs() < 1e-9);
    }

    #[test]
    fn a_failed_iperf3_is_an_error() {
        let error = parse_iperf3(r#"{"error":"unable to connect","end":{}}"#).unwrap_err();
        assert!(error.to_string().contains("unable to connect"), "{error}");
    }
}
