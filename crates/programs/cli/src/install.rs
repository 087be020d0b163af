//! `ambit install`, `upgrade` and `uninstall` of the mesh in a cluster.

use std::{path::PathBuf, time::Duration};

use ambit_install::{
    apply::{self, InstallOptions},
    attachment,
    cluster::{ClusterApi, ClusterError},
    error::InstallError,
    gateway_api,
    istio_values::{self, IstioChart},
    plan::Plan,
    platform,
    remove::{self, UninstallOptions},
    render::{self, Release},
    values::ValueOverrides,
};
use ambit_k8s_api::{Node, revisions};
use clap::{ArgAction, Args};
use serde_json::Value;

use crate::{
    CliError, ErrorKind,
    cluster::{Target, block_on},
    files::read_text,
    output::print_line,
};

/// Values for the chart.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChartValues {
    /// A file of values; later ones win
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Values written for Istio's chart istiod, cni or ztunnel, or an IstioOperator (operator); what has no effect here
    /// is named. Values of --values and --set go before them
    #[arg(long, value_name = "CHART=FILE", value_parser = parse_istio_values)]
    istio_values: Vec<(IstioChart, PathBuf)>,
    /// A value, as path.to.value=value; several are separated by commas
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// A value that is a string even if it looks like a number
    #[arg(long, value_name = "PATH=VALUE")]
    set_string: Vec<String>,
    /// gke, eks, aks, openshift, k3s, k3d, minikube, kind, talos, microk8s, none, or auto: detected from the nodes
    #[arg(long, default_value = "auto", value_parser = parse_platform)]
    platform: String,
}

/// Flags of [`install`].
#[derive(Clone, Debug, Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    values: ChartValues,
    /// Print the manifests instead of applying them; needs no cluster if --platform is given
    #[arg(long)]
    dry_run: bool,
    /// Wait until everything is ready
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    wait: bool,
    /// How long to wait, such as 90s or 5m
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
    /// Take over fields that other managers own, for example Helm or kubectl
    #[arg(long)]
    force_conflicts: bool,
}

/// Flags of [`upgrade`].
#[derive(Clone, Debug, Args)]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    install: InstallArgs,
    /// Revision of the control plane to upgrade
    #[arg(long, default_value = revisions::DEFAULT_REVISION)]
    revision: String,
    /// Discard the values of the installation instead of merging the given ones into them
    #[arg(long)]
    reset_values: bool,
}

/// Flags of [`uninstall`].
#[derive(Clone, Debug, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    target: Target,
    /// Revision to remove; one that was installed without the parts on nodes leaves all pods in the mesh
    #[arg(long, default_value = revisions::DEFAULT_REVISION)]
    revision: String,
    /// Remove the label from the namespaces of the mesh
    #[arg(long)]
    unlabel: bool,
    /// Go on although namespaces are labelled; their pods are unenrolled all the same
    #[arg(long)]
    force: bool,
    /// Go on although pods cannot be unenrolled; delete these pods afterwards
    #[arg(long)]
    force_captured: bool,
    /// Only unenrol all pods, as the chart itself does before `helm uninstall`
    #[arg(long, conflicts_with_all = ["crds", "root", "delete_namespace"])]
    release_only: bool,
    /// Also delete the CRDs of Istio's kinds with all their objects, if the installation created them
    #[arg(long)]
    crds: bool,
    /// Also delete the self-signed root of the CA: the next installation has another one
    #[arg(long)]
    root: bool,
    /// Also delete the namespace of the mesh, if the installation created it
    #[arg(long)]
    delete_namespace: bool,
    /// How long to wait until all pods are unenrolled, such as 90s or 5m
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
}

/// Installs the mesh, or changes an installation to the given values.
pub(crate) fn install(args: &InstallArgs) -> Result<(), CliError> {
    block_on(run(args, ValueOverrides::default()))
}

/// Upgrades an installation to this version, and keeps its values.
pub(crate) fn upgrade(args: &UpgradeArgs) -> Result<(), CliError> {
    block_on(async {
        let cluster = args.install.target.connect().await?;
        let namespace = &args.install.target.mesh_namespace;
        let before = apply::installed_inventory(&cluster, namespace, &args.revision)
            .await
            .map_err(install_error)?;
        let before = before.ok_or_else(|| {
            not_installed_error(namespace, &args.revision).with_hint(
                "`ambit install` installs; --mesh-namespace and --revision name another one",
            )
        })?;
        let mut values = ValueOverrides::default();
        if !args.reset_values {
            let text = before.values.to_string();
            values
                .add_file("the values of the installation", &text)
                .map_err(|error| install_error(error.into()))?;
        } else if args.revision != revisions::DEFAULT_REVISION {
            let setting = format!("global.revision={}", args.revision);
            let set = values.set(&setting, true);
            set.map_err(|error| install_error(error.into()))?;
        }
        run(&args.install, values).await
    })
}

async fn run(args: &InstallArgs, mut overrides: ValueOverrides) -> Result<(), CliError> {
    overrides.extend(args.values.load_overrides()?);
    let mut release = Release {
        namespace: args.target.mesh_namespace.clone(),
        ..Release::default()
    };
    // A dry run for a platform that is named needs no cluster.
    if args.dry_run && args.values.platform != "auto" {
        args.values
            .choose_platform(&mut overrides, &args.values.platform)?;
        return print_plan(&Plan::new(release, overrides).map_err(install_error)?);
    }
    let cluster = args.target.connect().await?;
    let (version, minor) = cluster
        .version()
        .await
        .map_err(|error| install_error(error.into()))?;
    release.kube_minor_version = minor;
    let platform = args.values.detect_platform(&cluster).await?;
    args.values.choose_platform(&mut overrides, &platform)?;
    let platform = overrides
        .string_at(&["global", "platform"])
        .unwrap_or_default()
        .to_owned();
    attachment::choose_waypoint_attachment(
        &cluster,
        &release.namespace,
        &mut overrides,
        &print_progress,
    )
    .await
    .map_err(install_error)?;
    let plan = Plan::new(release, overrides).map_err(install_error)?;
    if args.dry_run {
        return print_plan(&plan);
    }
    let named = if platform.is_empty() {
        String::new()
    } else {
        format!(" on {platform}")
    };
    print_progress(&format!("Kubernetes {version}{named}"));
    let gateway_api = gateway_api::describe_crds(&cluster).await;
    print_progress(&gateway_api.map_err(|error| install_error(error.into()))?);
    let options = InstallOptions {
        ready_timeout: args.wait.then_some(args.timeout),
        force_conflicts: args.force_conflicts,
    };
    apply::install(&cluster, &plan, options, &print_progress)
        .await
        .map_err(|error| {
            let hints: &[&str] = match &error {
                InstallError::NotReady(..) => {
                    &["the same command goes on from here; `ambit check` diagnoses the cluster"]
                }
                InstallError::MissingImages(_) => IMAGE_PULL_HINTS,
                _ => &[],
            };
            hints
                .iter()
                .fold(install_error(error), |error, hint| error.with_hint(*hint))
        })?;
    let complete = plan
        .overrides
        .with_defaults()
        .map_err(|error| install_error(error.into()))?;
    let notes = render::render_notes(&plan.release, &complete)
        .map_err(|error| install_error(error.into()))?;
    print_line(&format!(
        "Ambit {} is installed in {}.",
        env!("CARGO_PKG_VERSION"),
        plan.release.namespace
    ))?;
    // The first paragraph repeats the output, the second the actions, the last is for users of Helm.
    let rest: Vec<_> = notes.trim().split("\n\n").skip(2).take(2).collect();
    print_line(&format!("\n{}", rest.join("\n\n")))
}

/// Uninstalls the mesh, after all pods are unenrolled.
pub(crate) fn uninstall(args: &UninstallArgs) -> Result<(), CliError> {
    block_on(async {
        let cluster = args.target.connect().await?;
        let namespace = &args.target.mesh_namespace;
        let removal = UninstallOptions {
            delete_crds: args.crds,
            delete_root: args.root,
            delete_namespace: args.delete_namespace,
        };
        let remove = async || {
            let revision = (namespace.as_str(), args.revision.as_str());
            let removed = remove::uninstall(&cluster, revision, removal, &print_progress).await;
            removed.map_err(install_error)
        };
        // Unenrolment alone reads nothing else: the chart's Job has rights for no more.
        if !args.release_only {
            let known = apply::installed_inventory(&cluster, namespace, &args.revision).await;
            let known = known.map_err(install_error)?.ok_or_else(|| {
                not_installed_error(namespace, &args.revision)
                    .with_hint("what Helm installed, `helm uninstall` removes")
            })?;
            if !known.has_node_components() {
                remove().await?;
                return print_line(&format!("The revision {} is uninstalled.", args.revision));
            }
        }
        if args.unlabel || !args.release_only {
            remove_mesh_labels(&cluster, args).await?;
        }
        match remove::unenrol_all(&cluster, namespace, args.timeout, &print_progress).await {
            // They would be left with a redirection to a proxy that is gone.
            Err(error @ InstallError::NotReady(..)) if !args.force_captured => {
                return Err(install_error(error).with_hint(
                    "--force-captured removes the mesh regardless: delete these pods then",
                ));
            }
            Err(InstallError::NotReady(_, pods)) => pods.iter().for_each(|pod| print_progress(pod)),
            other => other.map_err(install_error)?,
        }
        if args.release_only {
            return print_line("No pod is captured any longer.");
        }
        remove().await?;
        print_line("Ambit is uninstalled.")
    })
}

fn not_installed_error(namespace: &str, revision: &str) -> CliError {
    install_error(InstallError::NotInstalled {
        namespace: namespace.to_owned(),
        revision: revision.to_owned(),
    })
}

/// Removes the mesh labels of namespaces with `--unlabel`; otherwise fails if namespaces are labelled, unless forced.
async fn remove_mesh_labels(cluster: &ClusterApi, args: &UninstallArgs) -> Result<(), CliError> {
    let enrolled = remove::enrolled_namespaces(cluster).await;
    let enrolled = enrolled.map_err(install_error)?;
    if args.unlabel {
        for name in &enrolled {
            remove::label_namespace(cluster, name, false)
                .await
                .map_err(install_error)?;
            print_progress(&format!("namespace {name}: label removed"));
        }
    } else if !enrolled.is_empty() && !args.force {
        let what = format!("namespaces are still in the mesh: {}", enrolled.join(", "));
        return Err(CliError::new(ErrorKind::Failed, what)
            .with_hint("--unlabel removes their labels; --force leaves them: another installation enrols these namespaces again"));
    }
    Ok(())
}

impl ChartValues {
    fn load_overrides(&self) -> Result<ValueOverrides, CliError> {
        let mut overrides = ValueOverrides::default();
        for (chart, path) in &self.istio_values {
            let name = path.display().to_string();
            let translation = istio_values::translate(*chart, &name, &read_text(path)?)
                .map_err(|error| install_error(error.into()))?;
            for ignored in &translation.ignored {
                print_progress(&format!("warning: {name}: left out {ignored}"));
            }
            overrides.add_layer(translation.values);
        }
        for path in &self.files {
            overrides
                .add_file(&path.display().to_string(), &read_text(path)?)
                .map_err(|error| install_error(error.into()))?;
        }
        for (settings, strings) in [(&self.set, false), (&self.set_string, true)] {
            for setting in settings {
                overrides
                    .set(setting, strings)
                    .map_err(|error| install_error(error.into()))?;
            }
        }
        Ok(overrides)
    }

    async fn detect_platform(&self, cluster: &ClusterApi) -> Result<String, CliError> {
        if self.platform != "auto" {
            return Ok(self.platform.clone());
        }
        let nodes: Vec<Node> = cluster
            .list_typed(None, None)
            .await
            .map_err(|error| install_error(error.into()))?;
        Ok(platform::detect_platform(&nodes).to_owned())
    }

    /// Sets the platform's value: an explicit `--platform` wins over `global.platform` of the values, and these over
    /// detection.
    fn choose_platform(
        &self,
        overrides: &mut ValueOverrides,
        platform: &str,
    ) -> Result<(), CliError> {
        let set = overrides.string_at(&["global", "platform"]).is_some();
        if set && self.platform == "auto" {
            return Ok(());
        }
        let name = if platform == "none" { "" } else { platform };
        overrides
            .set(&format!("global.platform={name}"), true)
            .map_err(|error| install_error(error.into()))
    }
}

fn print_plan(plan: &Plan) -> Result<(), CliError> {
    let namespace = plan.namespace();
    let all = [&namespace]
        .into_iter()
        .chain(&plan.crds)
        .chain(&plan.objects);
    let mut text = String::new();
    for object in all {
        text.push_str("---\n");
        text.push_str(&to_yaml(object)?);
    }
    print_line(text.trim_end())
}

fn to_yaml(object: &Value) -> Result<String, CliError> {
    serde_saphyr::to_string(object).map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot print a manifest").with_source(error.to_string())
    })
}

/// Hints for an installation whose images cannot be pulled.
const IMAGE_PULL_HINTS: &[&str] = &[
    "no images of Ambit are published: `cargo xtask images --release` builds them (README, \"On Kubernetes\"), and \
     --set global.hub=REGISTRY/PATH,global.tag=TAG says where they are",
    "--set global.imagePullSecrets={NAME} names a Secret with the registry's credentials",
    "the same command goes on from here",
];

/// Prints progress to standard error, apart from the output.
#[expect(clippy::print_stderr, reason = "the command line speaks there")]
pub(crate) fn print_progress(text: &str) {
    eprintln!("{text}");
}

pub(crate) fn install_error(error: InstallError) -> CliError {
    let kind = match &error {
        InstallError::Values(_) => ErrorKind::Usage,
        InstallError::NotInstalled { .. } => ErrorKind::NotFound,
        InstallError::Cluster(ClusterError::Api { source, .. })
            if !matches!(**source, kube::Error::Api(_)) =>
        {
            ErrorKind::Unreachable
        }
        _ => ErrorKind::Failed,
    };
    CliError::new(kind, error.to_string()).with_source(error)
}

/// Parses the value of `--istio-values`, `CHART=FILE`.
fn parse_istio_values(text: &str) -> Result<(IstioChart, PathBuf), String> {
    let (chart, file) = text
        .split_once('=')
        .ok_or("write it as istiod=FILE, cni=FILE, ztunnel=FILE or operator=FILE")?;
    Ok((chart.parse()?, file.into()))
}

fn parse_platform(text: &str) -> Result<String, String> {
    if text == "auto" || text == "none" || platform::PLATFORMS.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "known are auto, none, {}",
            platform::PLATFORMS.join(", ")
        ))
    }
}

/// Parses a duration: `90s`, `5m`, `1h`, or a number of seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.char_indices().next_back() {
        Some((at, 's')) => (text.get(..at), 1),
        Some((at, 'm')) => (text.get(..at), 60),
        Some((at, 'h')) => (text.get(..at), 3600),
        _ => (Some(text), 1),
    };
    let seconds = number.and_then(|number| number.parse::<u64>().ok());
    let seconds = seconds.and_then(|seconds| seconds.checked_mul(factor));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{text:?} is no time such as 90s, 5m or 1h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse_duration("7"), Ok(Duration::from_secs(7)));
        for wrong in ["", "m", "x", "5 m", "99999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_of_istio_are_below_those_of_this_chart() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let istio = file("istio.yaml", "logLevel: debug\nnetwork: east\nhub: x\n");
        let own = file("own.yaml", "global: {network: west}\n");
        let values = ChartValues {
            files: vec![own],
            istio_values: vec![(IstioChart::Ztunnel, istio)],
            set: vec![],
            set_string: vec![],
            platform: "none".to_owned(),
        };
        let overrides = values.load_overrides().unwrap();
        assert_eq!(overrides.string_at(&["global", "network"]), Some("west"));
        assert_eq!(
            overrides.string_at(&["global", "logging", "level"]),
            Some("debug")
        );
        assert_eq!(overrides.string_at(&["ztunnel", "hub"]), None);
        for wrong in ["istiod", "pilot=a.yaml", "=a.yaml"] {
            assert!(parse_istio_values(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_platform_that_is_named_wins_over_one_that_is_set() {
        let values = |platform: &str| ChartValues {
            files: vec![],
            istio_values: vec![],
            set: vec![],
            set_string: vec![],
            platform: platform.to_owned(),
        };
        for (given, set, found, expected) in [
            ("auto", None, "gke", "gke"),
            ("auto", Some("eks"), "gke", "eks"),
            ("k3s", Some("eks"), "k3s", "k3s"),
            ("none", None, "none", ""),
        ] {
            let mut overrides = ValueOverrides::default();
            if let Some(set) = set {
                overrides
                    .set(&format!("global.platform={set}"), false)
                    .unwrap();
            }
            values(given)
                .choose_platform(&mut overrides, found)
                .unwrap();
            assert_eq!(overrides.string_at(&["global", "platform"]), Some(expected));
        }
    }
}
