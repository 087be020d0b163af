//! What the demo and the tests need beside the Rust toolchain, installed when missing.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};

use crate::shell;

/// A program or file, and the Debian package that brings it.
struct Need {
    paths: &'static [&'static str],
    package: &'static str,
}

/// To build: aws-lc and libFuzzer are C and C++.
const BUILD: &[Need] = &[
    Need {
        paths: &["/usr/bin/cc"],
        package: "gcc",
    },
    Need {
        paths: &["/usr/bin/c++"],
        package: "g++",
    },
    Need {
        paths: &["/usr/bin/cmake"],
        package: "cmake",
    },
];

/// To run the lab.
const LAB: &[Need] = &[
    Need {
        paths: &["/usr/sbin/nft", "/sbin/nft"],
        package: "nftables",
    },
    Need {
        paths: &["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"],
        package: "iproute2",
    },
];

/// To test against other people's tools.
const TEST: &[Need] = &[
    Need {
        paths: &["/usr/sbin/iptables-nft-restore"],
        package: "iptables",
    },
    Need {
        paths: &["/usr/lib/cni/bridge"],
        package: "containernetworking-plugins",
    },
    Need {
        paths: &["/usr/bin/tcpdump", "/usr/sbin/tcpdump"],
        package: "tcpdump",
    },
    Need {
        paths: &["/usr/bin/faketime"],
        package: "faketime",
    },
];

/// To run a Kubernetes.
const CLUSTER: &[Need] = &[
    Need {
        paths: &["/usr/bin/go", "/usr/local/go/bin/go", "/usr/local/bin/go"],
        package: "golang-go",
    },
    Need {
        paths: &["/usr/bin/containerd"],
        package: "containerd",
    },
    Need {
        paths: &["/usr/sbin/runc"],
        package: "runc",
    },
    Need {
        paths: &["/usr/lib/cni/bridge"],
        package: "containernetworking-plugins",
    },
    Need {
        paths: &["/usr/sbin/conntrack"],
        package: "conntrack",
    },
    Need {
        paths: &["/usr/sbin/iptables-nft-restore"],
        package: "iptables",
    },
    Need {
        paths: &["/bin/busybox"],
        package: "busybox-static",
    },
];

/// To measure.
const BENCH: &[Need] = &[
    Need {
        paths: &["/usr/bin/iperf3"],
        package: "iperf3",
    },
    Need {
        paths: &["/usr/bin/wrk"],
        package: "wrk",
    },
    Need {
        paths: &["/usr/sbin/nginx"],
        package: "nginx-light",
    },
];

/// What a command is about to do.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Demo,
    Test,
    Bench,
    Cluster,
}

/// Installs what is missing for `purpose`, or says what to install.
pub(crate) fn ensure(purpose: Purpose) -> Result<()> {
    let groups: &[&[Need]] = match purpose {
        Purpose::Demo => &[BUILD, LAB],
        Purpose::Test => &[BUILD, LAB, TEST, CLUSTER],
        Purpose::Bench => &[BUILD, LAB, BENCH],
        Purpose::Cluster => &[BUILD, LAB, CLUSTER],
    };
    let missing: Vec<&str> = groups
        .iter()
        .flat_map(|group| group.iter())
        .filter(|need| !need.paths.iter().any(|path| Path::new(path).exists()))
        .map(|need| need.package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() || !is_root() {
        bail!(
            "these Debian packages (or your distribution's like) are needed: {}; install them and \
             run the command again",
            missing.join(" ")
        );
    }
    shell::run(
        "apt-get update",
        Command::new("apt-get").args(["-q", "update"]),
    )?;
    // `nginx` must not start a server of its own on this machine.
    shell::run(
        &format!("apt-get install {}", missing.join(" ")),
        Command::new("apt-get")
            .args(["-q", "-y", "--no-install-recommends", "install"])
            .args(&missing)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("RUNLEVEL", "1"),
    )
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self")
        .is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}
