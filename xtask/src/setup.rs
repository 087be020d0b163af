//! Tools that the demo and the tests need besides the Rust toolchain. Missing tools are installed.

use std::{path::Path, process::Command};

use ambit_images::Architecture;
use anyhow::{Result, bail};

use crate::shell;

/// Paths of a tool's program or file, and the Debian package that contains it.
struct RequiredPackage {
    paths: &'static [&'static str],
    package: &'static str,
}

/// Tools for builds: aws-lc and libFuzzer are written in C and C++.
const BUILD_PACKAGES: &[RequiredPackage] = &[
    RequiredPackage {
        paths: &["/usr/bin/cc"],
        package: "gcc",
    },
    RequiredPackage {
        paths: &["/usr/bin/c++"],
        package: "g++",
    },
    RequiredPackage {
        paths: &["/usr/bin/cmake"],
        package: "cmake",
    },
];

/// Tools that the lab runs.
const LAB_PACKAGES: &[RequiredPackage] = &[
    RequiredPackage {
        paths: &["/usr/sbin/nft", "/sbin/nft"],
        package: "nftables",
    },
    RequiredPackage {
        paths: &["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"],
        package: "iproute2",
    },
];

/// Tools for tests of redirection by iptables rules.
const IPTABLES_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &["/usr/sbin/iptables-nft-restore"],
    package: "iptables",
}];

/// Third-party primary CNI plugins for tests.
const CNI_PLUGIN_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &["/usr/lib/cni/bridge"],
    package: "containernetworking-plugins",
}];

/// Tools for tests on nodes with wrong clocks.
const FAKETIME_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &["/usr/bin/faketime"],
    package: "faketime",
}];

/// Go toolchain, which builds third-party programs such as Helm and Kubernetes.
const GO_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &["/usr/bin/go", "/usr/local/go/bin/go", "/usr/local/bin/go"],
    package: "golang-go",
}];

/// Tools that run a Kubernetes cluster, besides [`GO_PACKAGES`], [`CNI_PLUGIN_PACKAGES`] and [`IPTABLES_PACKAGES`].
const CLUSTER_PACKAGES: &[RequiredPackage] = &[
    RequiredPackage {
        paths: &["/usr/bin/containerd"],
        package: "containerd",
    },
    RequiredPackage {
        paths: &["/usr/sbin/runc"],
        package: "runc",
    },
    RequiredPackage {
        paths: &["/usr/sbin/conntrack"],
        package: "conntrack",
    },
    RequiredPackage {
        paths: &["/usr/sbin/ipset", "/sbin/ipset"],
        package: "ipset",
    },
    RequiredPackage {
        paths: &["/bin/busybox"],
        package: "busybox-static",
    },
];

/// Path of the compiler that Cilium's agent calls on the nodes of a cluster, and that compiles Ambit's BPF programs.
pub(crate) const CLANG_PATH: &str = "/usr/lib/llvm-19/bin/clang";

/// Path of the tool that merges the counters of instrumented programs into a profile.
pub(crate) const PROFDATA_PATH: &str = "/usr/lib/llvm-19/bin/llvm-profdata";

const PROFDATA_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &[PROFDATA_PATH],
    package: "llvm-19",
}];

const CLANG_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &[CLANG_PATH],
    package: "clang-19",
}];

/// Tools for building container images.
const IMAGE_PACKAGES: &[RequiredPackage] = &[
    RequiredPackage {
        paths: &["/usr/bin/strip"],
        package: "binutils",
    },
    RequiredPackage {
        paths: &[ambit_images::BUSYBOX],
        package: "busybox-static",
    },
];

/// Debian's cross compilers and emulators for arm64 programs.
const ARM64_PACKAGES: &[RequiredPackage] = &[
    RequiredPackage {
        paths: &["/usr/bin/aarch64-linux-gnu-gcc"],
        package: "gcc-aarch64-linux-gnu",
    },
    RequiredPackage {
        paths: &["/usr/aarch64-linux-gnu/include/stdio.h"],
        package: "libc6-dev-arm64-cross",
    },
    RequiredPackage {
        paths: &["/usr/bin/qemu-aarch64-static"],
        package: "qemu-user-static",
    },
];
const AMD64_PACKAGES: &[RequiredPackage] = &[
    RequiredPackage {
        paths: &["/usr/bin/x86_64-linux-gnu-gcc"],
        package: "gcc-x86-64-linux-gnu",
    },
    RequiredPackage {
        paths: &["/usr/x86_64-linux-gnu/include/stdio.h"],
        package: "libc6-dev-amd64-cross",
    },
    RequiredPackage {
        paths: &["/usr/bin/qemu-x86_64-static"],
        package: "qemu-user-static",
    },
];

/// Emulator of arm64 machines, besides [`ARM64_PACKAGES`].
const ARM64_EMULATOR_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &["/usr/bin/qemu-system-aarch64"],
    package: "qemu-system-arm",
}];

/// The web server nginx, as a third-party server and proxy for tests.
const NGINX_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &["/usr/sbin/nginx"],
    package: "nginx-light",
}];

/// Tools that build the dashboard's bundle.
const NODE_JS_PACKAGES: &[RequiredPackage] = &[
    RequiredPackage {
        paths: &["/usr/bin/node", "/usr/local/bin/node"],
        package: "nodejs",
    },
    RequiredPackage {
        paths: &["/usr/bin/npm", "/usr/local/bin/npm"],
        package: "npm",
    },
];

/// Browser for tests of the dashboard's page, besides [`NODE_JS_PACKAGES`].
const BROWSER_PACKAGES: &[RequiredPackage] = &[RequiredPackage {
    paths: &["/usr/bin/chromium"],
    package: "chromium",
}];

/// Tools for benchmarks, besides [`NGINX_PACKAGES`].
const BENCH_PACKAGES: &[RequiredPackage] = &[
    RequiredPackage {
        paths: &["/usr/bin/iperf3"],
        package: "iperf3",
    },
    RequiredPackage {
        paths: &["/usr/bin/wrk"],
        package: "wrk",
    },
    RequiredPackage {
        paths: &["/usr/bin/h2load"],
        package: "nghttp2-client",
    },
    RequiredPackage {
        paths: &["/usr/bin/python3", "/usr/local/bin/python3"],
        package: "python3-pip",
    },
    RequiredPackage {
        paths: &["/usr/bin/tcpdump", "/usr/sbin/tcpdump"],
        package: "tcpdump",
    },
];

/// Requirements of the tests of one crate, besides the requirements of builds.
#[derive(Clone, Copy)]
pub(crate) struct TestRequirements {
    /// Debian packages that the tests need.
    needs: &'static [&'static [RequiredPackage]],
    /// Whether the tests need root, to create network namespaces on this machine or run a container runtime.
    pub(crate) root: bool,
    /// Whether the tests run programs of other crates.
    pub(crate) binaries: bool,
    /// Whether the tests run programs of [`crate::outside`].
    pub(crate) outside: bool,
}

impl TestRequirements {
    /// Returns the requirements of the crate `name`, which is without `ambit-`.
    pub(crate) fn for_crate(name: &str) -> Self {
        let (needs, root, binaries): (&[&[RequiredPackage]], bool, bool) = match name {
            "agent" | "bpf" | "netlab" | "node-proxy" | "waypoint" => {
                (&[LAB_PACKAGES], true, false)
            }
            "sys" => (&[LAB_PACKAGES, IPTABLES_PACKAGES], true, false),
            "cni" => (&[LAB_PACKAGES, CNI_PLUGIN_PACKAGES], true, false),
            // Without root, the lab runs in a user namespace.
            "cli" => (
                &[LAB_PACKAGES, CNI_PLUGIN_PACKAGES, FAKETIME_PACKAGES],
                false,
                true,
            ),
            "system-tests" => (
                &[
                    LAB_PACKAGES,
                    IPTABLES_PACKAGES,
                    CNI_PLUGIN_PACKAGES,
                    FAKETIME_PACKAGES,
                    NGINX_PACKAGES,
                    GO_PACKAGES,
                    NODE_JS_PACKAGES,
                    BROWSER_PACKAGES,
                ],
                true,
                true,
            ),
            "install" => (&[GO_PACKAGES], false, false),
            "cluster-tests" => (
                &[
                    LAB_PACKAGES,
                    IPTABLES_PACKAGES,
                    CNI_PLUGIN_PACKAGES,
                    GO_PACKAGES,
                    CLUSTER_PACKAGES,
                ],
                true,
                true,
            ),
            _ => (&[], false, false),
        };
        Self {
            needs,
            root,
            binaries,
            outside: matches!(name, "system-tests" | "cluster-tests"),
        }
    }

    /// Returns the union of the requirements of all crates.
    pub(crate) fn all() -> Self {
        Self {
            needs: &[
                LAB_PACKAGES,
                IPTABLES_PACKAGES,
                CNI_PLUGIN_PACKAGES,
                FAKETIME_PACKAGES,
                NGINX_PACKAGES,
                GO_PACKAGES,
                NODE_JS_PACKAGES,
                BROWSER_PACKAGES,
                CLUSTER_PACKAGES,
            ],
            root: true,
            binaries: true,
            outside: true,
        }
    }

    /// Installs missing tools, or lists them if it cannot. Missing root privileges are reported before anything is
    /// installed.
    pub(crate) fn ensure(&self) -> Result<()> {
        if self.root && !is_root() {
            bail!(
                "these tests make network namespaces and so need root: run the same command as root, for \
                 example with `sudo --preserve-env=PATH,HOME`; crates whose tests need none are tested \
                 by `cargo xtask test CRATE`"
            );
        }
        install(&[&[BUILD_PACKAGES], self.needs].concat())
    }
}

/// Purpose for which tools are installed.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Demo,
    Bench,
    Cluster,
    /// Cilium as the primary CNI of a cluster.
    Cilium,
    Images,
    /// Programs for an architecture other than this machine's.
    Cross(Architecture),
    /// Emulated arm64 machine that runs cross-compiled programs.
    Arm64Machine,
    /// Ambit's BPF programs.
    Bpf,
    /// Profile by which the proxies are optimised.
    Profile,
    Web,
    Spire,
}

/// Installs missing tools for `purpose`, or lists them if it cannot.
pub(crate) fn ensure(purpose: Purpose) -> Result<()> {
    install(match purpose {
        Purpose::Demo => &[BUILD_PACKAGES, LAB_PACKAGES],
        Purpose::Images => &[BUILD_PACKAGES, IMAGE_PACKAGES],
        Purpose::Cross(Architecture::Amd64) => &[BUILD_PACKAGES, AMD64_PACKAGES],
        Purpose::Cross(Architecture::Arm64) => &[BUILD_PACKAGES, ARM64_PACKAGES],
        Purpose::Arm64Machine => &[
            BUILD_PACKAGES,
            IMAGE_PACKAGES,
            ARM64_PACKAGES,
            ARM64_EMULATOR_PACKAGES,
        ],
        Purpose::Web => &[NODE_JS_PACKAGES],
        Purpose::Spire => &[BUILD_PACKAGES, GO_PACKAGES],
        Purpose::Bench => &[
            BUILD_PACKAGES,
            LAB_PACKAGES,
            NGINX_PACKAGES,
            BENCH_PACKAGES,
            GO_PACKAGES,
        ],
        Purpose::Cluster => &[
            BUILD_PACKAGES,
            LAB_PACKAGES,
            IPTABLES_PACKAGES,
            CNI_PLUGIN_PACKAGES,
            GO_PACKAGES,
            CLUSTER_PACKAGES,
        ],
        Purpose::Bpf | Purpose::Cilium => &[BUILD_PACKAGES, CLANG_PACKAGES],
        Purpose::Profile => &[PROFDATA_PACKAGES],
    })
}

/// Returns the Debian packages of tools that are not installed on this machine.
fn missing_packages(groups: &[&[RequiredPackage]]) -> Vec<&'static str> {
    groups
        .iter()
        .flat_map(|group| group.iter())
        .filter(|need| !need.paths.iter().any(|path| Path::new(path).exists()))
        .map(|need| need.package)
        .collect()
}

fn require_all(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "these Debian packages (or your distribution's like) are needed: {}; install them and run the \
         command again",
        missing.join(" ")
    )
}

fn install(groups: &[&[RequiredPackage]]) -> Result<()> {
    let missing = missing_packages(groups);
    if missing.is_empty() {
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() || !is_root() {
        return require_all(&missing);
    }
    shell::run(
        "apt-get update",
        Command::new("apt-get").args(["-q", "update"]),
    )?;
    // Installing `nginx` must not start a server on this machine.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn crates_require_only_the_tools_of_their_tests() {
        let packages = |name: &str| -> Vec<&str> {
            let needs = TestRequirements::for_crate(name)
                .needs
                .iter()
                .copied()
                .flatten();
            needs.map(|need| need.package).collect()
        };
        assert_eq!(packages("model"), [""; 0]);
        assert_eq!(packages("install"), ["golang-go"]);
        assert!(!packages("system-tests").contains(&"containerd"));
        assert!(packages("cluster-tests").contains(&"containerd"));
    }

    #[test]
    fn crates_that_make_namespaces_in_tests_are_known_to_need_root() {
        let folders = fs::read_dir(shell::workspace_root().join("crates")).unwrap();
        let crates = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
        for entry in crates {
            let path = entry.unwrap().path();
            let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
            let of_tests = manifest.split("[dev-dependencies]").nth(1);
            if of_tests.is_some_and(|rest| rest.contains("ambit-netlab")) {
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(TestRequirements::for_crate(name).root, "{name}");
            }
        }
    }
}
