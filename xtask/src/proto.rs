//! Generates the Rust code in `crates/protocol/wire/src/generated` from `crates/protocol/wire/proto`. The result is
//! checked in, so that building Ambit needs neither protoc nor this generator (feature `gen`).

#[cfg(feature = "gen")]
mod schema;

#[cfg(not(feature = "gen"))]
pub(crate) fn generate(check: bool) -> anyhow::Result<()> {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "gen",
        "--",
        "gen",
    ]);
    if check {
        cargo.arg("--check");
    }
    anyhow::ensure!(
        cargo.status()?.success(),
        "generating the protobuf code failed"
    );
    Ok(())
}

/// Messages with private keys, for which `wire` implements `Debug` without the keys.
#[cfg(feature = "gen")]
const PRIVATE: [&str; 2] = [
    ".X509SVID",
    ".spire.api.agent.delegatedidentity.v1.X509SVIDWithKey",
];

#[cfg(feature = "gen")]
pub(crate) fn generate(check: bool) -> anyhow::Result<()> {
    use anyhow::Context;
    use std::path::Path;

    let wire = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/protocol/wire");
    let checked_in = wire.join("src/generated");
    let scratch = wire.join("../../../target/generated");
    let out = if check {
        scratch.as_path()
    } else {
        checked_in.as_path()
    };
    std::fs::create_dir_all(out)?;
    let files = [
        "workload",
        "authorization",
        "citadel",
        "zds",
        "discovery",
        "ambit",
        "waypoint",
        "spiffe_workload",
        "spire_types",
        "spire_delegated_identity",
        "envoy_core",
        "ext_authz",
        "rate_limit",
    ]
    .map(|name| wire.join("proto").join(format!("{name}.proto")));
    let descriptors = protox::compile(&files, [wire.join("proto")])?;
    std::fs::write(out.join("schema.rs"), schema::render(&descriptors)?)?;
    let mut prost = prost_build::Config::new();
    // Sorted, so that the same record has the same bytes, and so the same version, everywhere.
    prost
        .bytes(["."])
        .btree_map([".istio.workload.Workload.services"])
        .skip_debug(PRIVATE)
        .out_dir(out);
    tonic_prost_build::configure()
        .build_transport(true)
        .out_dir(out)
        .compile_fds_with_config(descriptors, prost)?;
    if check {
        for entry in std::fs::read_dir(out)? {
            let generated = entry?.path();
            let name = generated
                .file_name()
                .context("a generated file without a name")?;
            let same = std::fs::read(&generated)? == std::fs::read(checked_in.join(name))?;
            anyhow::ensure!(same, "{} is stale: run `cargo xtask gen`", name.display());
        }
    }
    Ok(())
}
