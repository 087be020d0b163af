//! Time to wake a thread: what the scheduler and the processors take for a message between two threads that do nothing
//! else. A request and its response wake node proxies four times, so that their latency depends on this time.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::Instant,
};

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::figure;

/// Messages in each direction of a round.
const MESSAGES: u32 = 20_000;
const ROUNDS: usize = 5;

/// Median time to wake a thread, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeUps {
    /// On another processor than that of the thread that wakes it.
    pub(crate) other_processor: f64,
    pub(crate) same_processor: f64,
}

/// Measures wake-ups on the first two processors.
///
/// # Errors
///
/// When a thread cannot be bound to a processor; on a machine with one, there is no second.
pub(crate) fn measure() -> Result<WakeUps> {
    let (mut other, mut same) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        other.push(exchange([0, 1])?);
        same.push(exchange([0, 0])?);
    }
    let median = |values| figure::median(values).unwrap_or(f64::NAN);
    Ok(WakeUps {
        other_processor: median(other),
        same_processor: median(same),
    })
}

/// Exchanges messages between threads on these processors, and returns the time of one wake-up in microseconds.
fn exchange(processors: [usize; 2]) -> Result<f64> {
    let (near, far) = UnixStream::pair()?;
    let [first, second] = processors;
    let echo = thread::spawn(move || on_processor(second, || echo(&far)));
    let time = thread::spawn(move || on_processor(first, || ask(&near)));
    let (time, echo) = (time.join(), echo.join());
    // A thread that cannot be bound closes its socket, so that the other one fails as well.
    echo.ok().context("a thread panicked")??;
    time.ok().context("a thread panicked")?
}

fn on_processor<T>(processor: usize, run: impl FnOnce() -> io::Result<T>) -> Result<T> {
    let mut processors = CpuSet::new();
    processors.set(processor);
    sched_setaffinity(None, &processors).with_context(|| format!("processor {processor}"))?;
    Ok(run()?)
}

fn ask(mut peer: &UnixStream) -> io::Result<f64> {
    let start = Instant::now();
    for _ in 0..MESSAGES {
        peer.write_all(&[0])?;
        peer.read_exact(&mut [0])?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * MESSAGES))
}

fn echo(mut peer: &UnixStream) -> io::Result<()> {
    for _ in 0..MESSAGES {
        peer.read_exact(&mut [0])?;
        peer.write_all(&[0])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_wakes_a_thread() {
        let time = exchange([0, 0]).unwrap();
        assert!(time > 0.0, "{time}");
        let error = exchange([0, 1_023]).unwrap_err();
        assert!(error.to_string().contains("processor 1023"), "{error}");
    }
}
