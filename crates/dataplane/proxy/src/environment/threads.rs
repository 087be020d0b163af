//! Number of worker threads, from the environment.

use ambit_rt::{Env, EnvError};

const EXPECTED_WORKER_COUNT: &str =
    "a number of threads, a percentage of the cores such as 50%, or 0 for all";

/// Returns the number of worker threads: `ZTUNNEL_WORKER_THREADS`, else the mesh's `concurrency`, else a number derived
/// from the container's CPU limit and request.
///
/// # Errors
///
/// When a variable cannot be parsed.
pub fn worker_count(env: &Env, concurrency: Option<u16>) -> Result<usize, EnvError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if let Some(text) = env
        .get("ZTUNNEL_WORKER_THREADS")
        .filter(|text| !text.is_empty())
    {
        return parse_worker_count(text, cores).ok_or_else(|| EnvError {
            variable: "ZTUNNEL_WORKER_THREADS".to_owned(),
            value: text.to_owned(),
            expected: EXPECTED_WORKER_COUNT,
        });
    }
    if let Some(concurrency) = concurrency {
        return Ok(if concurrency == 0 {
            cores
        } else {
            usize::from(concurrency)
        });
    }
    let cpus = |name| -> Result<Option<usize>, EnvError> { env.parse(name, "a number of CPUs") };
    let request = cpus("ZTUNNEL_RESOURCE_CPU_REQUEST")?.unwrap_or(0);
    let limit = match cpus("ZTUNNEL_CPU_LIMIT")? {
        Some(limit) => Some(limit),
        None => cpus("ZTUNNEL_RESOURCE_CPU_LIMIT")?,
    };
    Ok(match limit.filter(|limit| *limit > 0) {
        Some(limit) => limit.max(request),
        None => cores.div_ceil(4).max(request).max(2),
    })
}

fn parse_worker_count(text: &str, cores: usize) -> Option<usize> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: usize = percent.trim().parse().ok().filter(|p| *p <= 100)?;
        return Some((cores * percent).div_ceil(100).max(1));
    }
    match text.parse().ok()? {
        0 => Some(cores),
        n => Some(n).filter(|n| *n <= 1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker_count_for(
        pairs: &[(&str, &str)],
        concurrency: Option<u16>,
    ) -> Result<usize, EnvError> {
        worker_count(&Env::from_pairs(pairs.iter().copied()), concurrency)
    }

    #[test]
    fn numbers_and_percentages_are_read() {
        assert_eq!(parse_worker_count("3", 8), Some(3));
        assert_eq!(parse_worker_count("0", 8), Some(8));
        assert_eq!(parse_worker_count("50%", 8), Some(4));
        assert_eq!(parse_worker_count("1%", 8), Some(1));
        for bad in ["", "x", "-1", "200%", "99999"] {
            assert_eq!(parse_worker_count(bad, 8), None, "{bad}");
        }
    }

    #[test]
    fn the_most_explicit_setting_wins() {
        assert_eq!(
            worker_count_for(&[("ZTUNNEL_WORKER_THREADS", "5")], Some(2)),
            Ok(5)
        );
        assert_eq!(
            worker_count_for(&[("ZTUNNEL_CPU_LIMIT", "9")], Some(3)),
            Ok(3)
        );
        let both = [
            ("ZTUNNEL_CPU_LIMIT", "4"),
            ("ZTUNNEL_RESOURCE_CPU_REQUEST", "6"),
        ];
        assert_eq!(worker_count_for(&both, None), Ok(6));
        assert!(worker_count_for(&[], None).unwrap() >= 2);
    }
}
