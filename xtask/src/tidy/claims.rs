//! Rules that reserve certain actions for crates that ARCHITECTURE.md names.

use super::{
    layers::{self, DEVELOPMENT},
    paths::{CodeScope, NamedPath, named_paths},
    source::Source,
    workspace::Package,
};

/// Crates besides `wire` that may name protobuf messages, each with the reason. These crates are the ends of gRPC
/// streams, which pass messages on unchanged.
const MESSAGE_USERS: &[(&str, &str)] = &[
    ("ambit-wire", "they are its own"),
    ("ambit-xds", "the client's end of delta xDS"),
    ("ambit-certificates", "the client's end of the CSR API"),
    ("ambit-ca", "the server's end of the CSR API"),
    ("ambit-xds-server", "the server's end of delta xDS"),
    ("ambit-otlp", "what collectors of telemetry take"),
    (
        "ambit-otlp-export",
        "the same of a program's own metrics and logs",
    ),
];

/// Public names of the generated modules of `wire`, and crates that define protobuf messages.
const GENERATED_NAMES: &[&str] = &[
    "ambit",
    "discovery",
    "security",
    "citadel",
    "workload",
    "zds",
];
const PROTOBUF_CRATES: &[&str] = &["prost", "prost_types", "tonic_prost"];

/// Crates that may use netlink, with the reason.
const NETLINK_USERS: &[(&str, &str)] = &[
    ("ambit-sys", "the kernel's side of everything"),
    (
        "ambit-netlab",
        "makes namespaces and wires, for tests and the lab",
    ),
];

/// Crates that may spawn tokio tasks, with the reason. `rt` names and counts tasks, and ends the program if an
/// essential task panics.
const TASK_USERS: &[(&str, &str)] = &[("ambit-rt", "the only one")];

pub(super) fn find_violations(package: &Package, sources: &[Source]) -> Vec<String> {
    // Code of development crates is not shipped.
    if layers::folder(package).is_none_or(|folder| folder == DEVELOPMENT) {
        return Vec::new();
    }
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        for path in named_paths(&source.syntax, CodeScope::Shipped) {
            let what = [
                (is_message(&path), MESSAGE_USERS, "names protobuf messages"),
                (is_netlink(&path), NETLINK_USERS, "speaks netlink"),
                (is_task(&path), TASK_USERS, "starts tasks"),
            ];
            for (does, allowed, what) in what {
                if does && !allowed.iter().any(|(name, _)| *name == package.name) {
                    let allowed: Vec<_> = allowed.iter().map(|(name, _)| *name).collect();
                    broken.push(format!(
                        "{}: {} {what}; only {} may",
                        source.path.display(),
                        path.segments.join("::"),
                        allowed.join(", ")
                    ));
                }
            }
        }
    }
    broken
}

fn is_message(path: &NamedPath) -> bool {
    match path.segments.as_slice() {
        [first, second, ..] if first == "ambit_wire" => GENERATED_NAMES.contains(&second.as_str()),
        [first, ..] => PROTOBUF_CRATES.contains(&first.as_str()),
        [] => false,
    }
}

fn is_netlink(path: &NamedPath) -> bool {
    let first = path.segments.first().map(String::as_str);
    let last = path.segments.last().map(String::as_str);
    first.is_some_and(|name| name.starts_with("netlink_") || name.starts_with("rtnetlink"))
        || last.is_some_and(|name| name.starts_with("AF_NETLINK") || name == "NETLINK")
}

fn is_task(path: &NamedPath) -> bool {
    let names: Vec<_> = path.segments.iter().map(String::as_str).collect();
    matches!(
        names.as_slice(),
        ["tokio", "spawn"]
            | [
                "tokio",
                "task",
                "spawn" | "spawn_blocking" | "spawn_local" | "JoinSet" | "LocalSet"
            ]
            | ["tokio_util", "task", "JoinMap" | "LocalPoolHandle"]
            | ["task", "spawn" | "spawn_blocking" | "spawn_local"]
    )
}

#[cfg(test)]
mod tests {
    use super::{super::source::test_source, *};
    use crate::shell;

    fn found_violations(name: &str, text: &str) -> usize {
        let package = Package {
            name: name.to_owned(),
            dir: shell::workspace_root().join("crates/programs/made-up"),
            ..Package::default()
        };
        find_violations(&package, &[test_source("lib.rs", text)]).len()
    }

    #[test]
    fn reserved_actions_are_found_in_other_crates() {
        for (text, owner) in [
            ("use ambit_wire::workload::Workload;", "ambit-wire"),
            ("#[derive(prost::Message)] struct S;", "ambit-xds"),
            (
                "use netlink_packet_route::RouteNetlinkMessage;",
                "ambit-sys",
            ),
            (
                "const F: u32 = rustix::net::AddressFamily::NETLINK;",
                "ambit-netlab",
            ),
            ("fn f() { tokio::spawn(async {}); }", "ambit-rt"),
            ("use tokio::task::JoinSet;", "ambit-rt"),
        ] {
            assert_eq!(
                (
                    found_violations("made-up", text),
                    found_violations(owner, text)
                ),
                (1, 0),
                "{text}"
            );
        }
        for fine in [
            "use ambit_wire::decode::Decoded;",
            "fn f() { ambit_rt::spawn(\"a\", async {}); }",
            "#[cfg(test)] mod tests { fn g() { tokio::spawn(async {}); } }",
        ] {
            assert_eq!(found_violations("made-up", fine), 0, "{fine}");
        }
    }
}
