use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

const HELM_VERSION: &str = "v3.22.0";

/// Returns a command that runs real Helm, without the user's settings. Helm is built once, from its Go module, and
/// stored beside the other build artefacts.
pub fn helm_command() -> Command {
    let helm = helm_binary();
    let nothing = helm.with_file_name("home");
    let mut command = Command::new(helm);
    for home in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(home, &nothing);
    }
    command
}

/// Returns the path of the Helm binary, and builds it if needed. Tests of one process share the binary. Concurrent
/// processes build it under separate names, and rename it into place.
fn helm_binary() -> &'static Path {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    HELM.get_or_init(|| {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/tools");
        let place = target.join(format!("helm-{HELM_VERSION}"));
        let helm = place.join("helm");
        if helm.exists() {
            return helm;
        }
        let building = target.join(format!("helm-{HELM_VERSION}.{}", std::process::id()));
        let built = Command::new("go")
            .args(["install", "-trimpath", "-ldflags=-s -w"])
            .arg(format!("helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"))
            .env("GOBIN", &building)
            .env("CGO_ENABLED", "0")
            .status()
            .expect("Go builds Helm: `cargo xtask test` installs it");
        assert!(built.success(), "Helm {HELM_VERSION} cannot be built");
        // Another process may have been faster.
        drop(fs::rename(&building, place));
        drop(fs::remove_dir_all(&building));
        helm
    })
}
