//! `cargo xtask arm64`: runs the lab's demo, with cross-built programs, on an emulated arm64 machine with Debian's
//! kernel for arm64. Unlike with QEMU's emulation of single programs, the kernel's part is real: system calls, netlink,
//! nftables, network namespaces.
//!
//! The machine has no disk and no network, and its file system is in memory. It prints to a serial console, whose text
//! is the result.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use ambit_images::Architecture;
use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    cross, debian, images,
    setup::{self, Purpose},
    shell,
};

/// Package that depends on Debian's newest kernel for virtual machines on arm64.
const KERNEL_PACKAGE: &str = "linux-image-cloud-arm64";

/// Directories and files of the kernel modules that the lab needs, with their dependencies.
const KERNEL_MODULES: [&str; 4] = ["net", "lib", "crypto", "drivers/net/veth.ko"];

/// Script that is the first process of the machine.
const INIT_SCRIPT: &str = include_str!("arm64/init.sh");

/// Directory of Ambit's programs in the virtual machine.
const PROGRAM_DIRECTORY: &str = "opt/ambit";

/// Timeout from the machine's start until it is powered off.
const BOOT_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// Words that lines of the machine's output must contain, in this order within a line. The demo itself checks more.
const EXPECTED_WORDS: [&[&str]; 7] = [
    &["machine: Linux", "aarch64"],
    &["shop/frontend", "shop/orders", "HBONE (mTLS)", "allowed"],
    &["shop/frontend", "shop/ledger", "HBONE (mTLS)", "DENIED"],
    &["legacy/batch", "shop/orders", "HBONE (mTLS)", "DENIED"],
    &[
        "shop/frontend",
        "catalog.store/items/",
        "200",
        "via_upstream",
    ],
    &[
        "shop/frontend",
        "catalog.store/prices/",
        "403",
        "rbac_access_denied",
    ],
    &["status: 0"],
];

/// Builds the programs, runs the machine, and checks its output.
pub(crate) fn run() -> Result<()> {
    let architecture = Architecture::Arm64;
    ensure!(
        !architecture.is_native(),
        "this machine has the architecture that the command emulates: `cargo xtask demo` runs the same without emulation"
    );
    setup::ensure(Purpose::Arm64Machine)?;
    let programs = build(architecture)?;
    let kernel = debian::unpack_newest(architecture, KERNEL_PACKAGE)?;
    let directory = ScratchDirectory::new(shell::target_dir().join("arm64-machine"))?;
    fill_initrd(&directory.0.join("root"), &programs, &kernel)?;
    let initrd = pack_initrd(&directory.0)?;
    eprintln!("==> the demo on an emulated machine");
    let start = Instant::now();
    let text = boot(&single_file(&kernel.join("boot"), "vmlinuz-")?, &initrd)?;
    check_output(&text)?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("    everything went as expected on arm64: {seconds:.1} s");
    Ok(())
}

/// Builds unoptimised programs for an architecture and returns their directory.
fn build(architecture: Architecture) -> Result<PathBuf> {
    let mut cargo = shell::cargo(&["build", "--locked", "--bins"]);
    for package in images::PACKAGES.iter().chain(&images::STATIC_PROGRAMS) {
        cargo.args(["--package", package]);
    }
    cross::configure(&mut cargo, architecture)?;
    shell::run("build the programs for arm64", &mut cargo)?;
    Ok(shell::target_dir()
        .join(architecture.rust_target())
        .join("debug"))
}

/// Directory that is removed on drop.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    /// Creates the directory, after removing a directory that an earlier, killed command has left.
    fn new(path: PathBuf) -> Result<Self> {
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _absent = fs::remove_dir_all(&self.0);
    }
}

/// Fills the machine's file system: Ambit's programs, `nft`, Busybox, the kernel's modules, and the shared libraries
/// that they load.
fn fill_initrd(root: &Path, programs: &Path, kernel: &Path) -> Result<()> {
    let architecture = Architecture::Arm64;
    let nft = debian::unpack_with_dependencies(architecture, "nftables")?;
    for part in ["bin", "sbin", "lib"] {
        let merged = root.join("usr").join(part);
        fs::create_dir_all(&merged)?;
        std::os::unix::fs::symlink(Path::new("usr").join(part), root.join(part))?;
        for from in [nft.join(part), nft.join("usr").join(part)] {
            if from.exists() {
                copy(&from.join("."), &merged)?;
            }
        }
    }
    copy(&cross::busybox(architecture)?, &root.join("bin"))?;
    let init = root.join("init");
    fs::write(&init, INIT_SCRIPT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;

    let directory = root.join(PROGRAM_DIRECTORY);
    fs::create_dir_all(&directory)?;
    for name in ambit_images::program_names().chain(["ambit-cni"]) {
        let mut strip = Command::new(format!("{}-strip", architecture.gnu_triple()));
        strip.arg("-o").arg(directory.join(name));
        run_successfully(strip.arg(programs.join(name)))?;
    }

    let modules = single_file(&kernel.join("lib/modules"), "")?;
    let version = modules.file_name().context("a kernel without version")?;
    let copied = root.join("lib/modules").join(version);
    for part in KERNEL_MODULES {
        let to = copied.join("kernel").join(part);
        let parent = to.parent().context("a module without directory")?;
        fs::create_dir_all(parent)?;
        copy(&modules.join("kernel").join(part), parent)?;
    }
    let mut depmod = Command::new(ambit_images::BUSYBOX);
    depmod.arg("depmod").arg("-b").arg(root).arg(version);
    run_successfully(&mut depmod)
}

/// Writes the subdirectory `root` as an initramfs archive; returns its path.
fn pack_initrd(directory: &Path) -> Result<PathBuf> {
    let script = r#""$0" find . | "$0" cpio -o -H newc -F ../initrd"#;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, ambit_images::BUSYBOX])
        .current_dir(directory.join("root"))
        .stderr(Stdio::null());
    run_successfully(&mut shell)?;
    Ok(directory.join("initrd"))
}

/// Returns the only entry of a directory whose name begins with `prefix`.
fn single_file(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory);
    let entries = entries.with_context(|| format!("no {}", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            found.push(entry.path());
        }
    }
    match &found[..] {
        [only] => Ok(only.clone()),
        _ => bail!("{} files {prefix}* in {}", found.len(), directory.display()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    run_successfully(Command::new("cp").arg("-a").arg(from).arg(to))
}

fn run_successfully(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

/// Running QEMU process, which is killed on drop.
struct VirtualMachine(Child);

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        // The emulator has usually ended by itself.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Runs the machine until it is powered off; prints and returns its output.
fn boot(kernel: &Path, initrd: &Path) -> Result<String> {
    let mut qemu = Command::new("qemu-system-aarch64");
    // A processor of servers. The machine's clock counts its instructions, one a nanosecond, so that timeouts do not
    // depend on the speed and load of this machine.
    qemu.args(["-machine", "virt", "-cpu", "neoverse-n1", "-smp", "2"])
        .args(["-icount", "shift=0,sleep=off", "-m", "2G", "-nodefaults"])
        .args(["-display", "none", "-no-reboot", "-serial", "stdio"])
        .args(["-append", "console=ttyAMA0 quiet panic=-1"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut machine = VirtualMachine(qemu.spawn().context("cannot start qemu-system-aarch64")?);
    let console = machine.0.stdout.take().context("no console")?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + BOOT_TIMEOUT;
    let mut text = String::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                eprintln!("    {line}");
                text.push_str(&line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                bail!("the machine was not powered off within {BOOT_TIMEOUT:?}")
            }
        }
    }
    let status = machine.0.wait()?;
    ensure!(status.success(), "qemu-system-aarch64 failed ({status})");
    Ok(text)
}

/// Checks the machine's output; the error lists what is missing.
fn check_output(text: &str) -> Result<()> {
    let missing = EXPECTED_WORDS.iter().filter(|words| {
        let mut lines = text.lines();
        !lines.any(|line| has_in_order(line, words))
    });
    let missing: Vec<_> = missing.map(|words| words.join(" … ")).collect();
    ensure!(
        missing.is_empty(),
        "the machine printed no line with:\n  {}",
        missing.join("\n  ")
    );
    Ok(())
}

fn has_in_order(line: &str, words: &[&str]) -> bool {
    let mut rest = line;
    words.iter().all(|word| match rest.split_once(word) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE_OUTPUT: &str = "\
machine: Linux 6.1.0-56-cloud-arm64 aarch64
shop/frontend  shop/orders     spiffe://cluster.local/ns/shop/sa/frontend  HBONE (mTLS)  allowed  shop/orders-from-frontend
shop/frontend  shop/ledger     spiffe://cluster.local/ns/shop/sa/frontend  HBONE (mTLS)  DENIED   shop/ledger-not-from-frontend
legacy/batch   shop/orders     spiffe://cluster.local/ns/legacy/sa/batch   HBONE (mTLS)  DENIED   ALLOW policies apply
shop/frontend  GET http://catalog.store/items/new/  200     catalog-next  via_upstream   HTTPRoute/store/catalog
shop/frontend  GET http://catalog.store/items/  200     catalog  via_upstream   HTTPRoute/store/catalog
shop/frontend  GET http://catalog.store/prices/     403     the waypoint  rbac_access_denied_matched_policy[none]  -
status: 0
";

    #[test]
    fn only_a_machine_that_printed_every_expected_line_passes() {
        check_output(EXAMPLE_OUTPUT).unwrap();
        for (line, instead, missing) in [
            ("aarch64", "x86_64", "machine: Linux … aarch64"),
            ("allowed", "DENIED", "HBONE (mTLS) … allowed"),
            (
                "DENIED   shop/ledger",
                "allowed",
                "shop/ledger … HBONE (mTLS) … DENIED",
            ),
            ("403", "200", "403"),
            ("status: 0", "status: 1", "status: 0"),
            (EXAMPLE_OUTPUT, "Kernel panic", "status: 0"),
        ] {
            let error = check_output(&EXAMPLE_OUTPUT.replace(line, instead)).unwrap_err();
            assert!(error.to_string().contains(missing), "{error}");
        }
    }
}
