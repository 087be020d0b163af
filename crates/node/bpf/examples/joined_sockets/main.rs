//! Compares the behaviour of two TCP sockets of one machine that the kernel's `sockmap` joins with that of the same
//! sockets as they are, and prints both as a table.
//!
//! Joined sockets (`BPF_MAP_TYPE_SOCKHASH`, `sk_msg`) would save the passage through the TCP stack between an
//! application and the node proxy. Ambit does not join them, because applications notice: see "Local hops" in
//! `ARCHITECTURE.md`. This program shows what a kernel does today; it needs the capabilities `BPF` and `NET_ADMIN`:
//!
//! ```text
//! cargo run --release --package ambit-bpf --example joined_sockets
//! ```
#![expect(
    clippy::print_stdout,
    reason = "the output is the purpose of the program"
)]

mod behaviours;
mod joined;

use std::error::Error;

use behaviours::{BEHAVIOURS, Outcome, Pair};
use joined::JoinedSockets;

fn main() -> Result<(), Box<dyn Error>> {
    let mut joined = JoinedSockets::load()?;
    println!("| | plain | joined |\n|---|---|---|");
    for (name, behaviour) in BEHAVIOURS {
        let plain = cell(behaviour(Pair::new()?));
        let pair = Pair::new()?;
        joined.join(&pair)?;
        println!("| {name} | {plain} | {} |", cell(behaviour(pair)));
    }
    Ok(())
}

/// Returns the text of a cell; a call that failed is an outcome too.
fn cell(outcome: Outcome) -> String {
    outcome.unwrap_or_else(|error| error.to_string())
}
