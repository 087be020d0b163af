//! Istio's own programs, built from its Go module for tests of migrations: the control plane, the node agent with its
//! CNI plugin, and `istioctl`, which writes the objects of an installation.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::{Architecture, write_file_image};
use anyhow::{Context as _, Result};

use crate::shell;

/// Go packages of Istio's programs.
const GO_PACKAGES: [&str; 4] = [
    "istio.io/istio/istioctl/cmd/istioctl",
    "istio.io/istio/pilot/cmd/pilot-discovery",
    "istio.io/istio/cni/cmd/install-cni",
    "istio.io/istio/cni/cmd/istio-cni",
];

/// Names under which Istio's agent calls the one program that sets iptables rules.
const IPTABLES_COMMANDS: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// Builds Istio's programs, and writes their images below the target directory, where the tests find them.
pub(crate) fn build() -> Result<()> {
    let out = shell::target_dir().join("istio");
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let mut go = Command::new("go");
    go.args([
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags=-s -w",
        "-o",
    ])
    .arg(&out)
    .args(GO_PACKAGES)
    .current_dir(shell::workspace_root().join("build/istio"))
    .env("CGO_ENABLED", "0");
    shell::run("build Istio's programs", &mut go)?;
    let pilot = [(
        "/usr/bin/pilot-discovery".to_owned(),
        out.join("pilot-discovery"),
    )];
    let user = "1337:1337";
    write_file_image(
        "docker.io/istio/pilot:dev",
        &pilot,
        &[],
        user,
        &out.join("pilot.tar"),
    )?;
    let mut agent = vec![
        ("/usr/bin/install-cni".to_owned(), out.join("install-cni")),
        ("/opt/cni/bin/istio-cni".to_owned(), out.join("istio-cni")),
        (
            "/usr/bin/xtables-nft-multi".to_owned(),
            PathBuf::from("/usr/sbin/xtables-nft-multi"),
        ),
    ];
    // Extensions are loaded by their paths, which the architecture is part of.
    let modules = Path::new("/usr/lib")
        .join(Architecture::native()?.gnu_triple())
        .join("xtables");
    for module in fs::read_dir(&modules).with_context(|| format!("no {}", modules.display()))? {
        let module = module?.path();
        agent.push((module.display().to_string(), module));
    }
    let links = IPTABLES_COMMANDS.map(|name| (format!("/usr/bin/{name}"), "xtables-nft-multi"));
    write_file_image(
        "docker.io/istio/install-cni:dev",
        &agent,
        &links,
        "",
        &out.join("install-cni.tar"),
    )
}
