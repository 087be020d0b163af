//! Fuzzes certificate signing requests, which every client with a token may send to the certificate authority.
#![no_main]

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use ambit_issuer::Authority;
use ambit_model::Identity;
use libfuzzer_sys::fuzz_target;

const HOUR: Duration = Duration::from_secs(3600);
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    Authority::new_root("fuzz", 24 * HOUR, SystemTime::now()).expect("a root can be made")
});

fuzz_target!(|text: &str| {
    let identity = Identity::new("cluster.local", "a", "b");
    drop(AUTHORITY.issue(text, &identity, HOUR, SystemTime::now()));
});
