//! `ambit install`, `upgrade` and `uninstall` of the mesh in a cluster.

use std::{path::PathBuf, time::Duration};

use ambit_install::{
    apply::{self, Options},
    attachment,
    cluster::{Cluster, ClusterError},
    error::InstallError,
    gateway_api,
    istio_values::{self, Chart},
    plan::Plan,
    platform,
    remove::{self, Removal},
    render::{self, Release},
    values::Overrides,
};
use ambit_k8s_api::{Node, revisions};
use clap::{ArgAction, Args};
use serde_json::Value;

use crate::{
    CliError, ErrorKind,
    cluster::{Target, wait},
    files::text_of,
    output::print_line,
};

/// Values for the chart.
#[derive(Clone, Debug, Args)]
pub(crate) struct Values {
    /// A file of values; later ones win
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Values written for Istio's chart istiod, cni or ztunnel, or an IstioOperator (operator); what has no effect here is
    /// named. Values of --values and --set go before them
    #[arg(long, value_name = "CHART=FILE", value_parser = istio_values)]
    istio_values: Vec<(Chart, PathBuf)>,
    /// A value, as path.to.value=value; several are separated by commas
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// A value that is a string even if it looks like a number
    #[arg(long, value_name = "PATH=VALUE")]
    set_string: Vec<String>,
    /// gke, eks, aks, openshift, k3s, k3d, minikube, kind, talos, microk8s, none, or auto: detected from the nodes
    #[arg(long, default_value = "auto", value_parser = platform_name)]
    platform: String,
}

/// Flags of [`install`].
#[derive(Clone, Debug, Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    values: Values,
    /// Print the manifests instead of applying them; needs no cluster if --platform is given
    #[arg(long)]
    dry_run: bool,
    /// Wait until everything is ready
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    wait: bool,
    /// How long to wait, such as 90s or 5m
    #[arg(long, default_value = "5m", value_parser = duration)]
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
    #[arg(long, default_value = revisions::DEFAULT)]
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
    #[arg(long, default_value = revisions::DEFAULT)]
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
    #[arg(long, default_value = "5m", value_parser = duration)]
    timeout: Duration,
}

/// Installs the mesh, or changes an installation to the given values.
pub(crate) fn install(args: &InstallArgs) -> Result<(), CliError> {
    wait(run(args, Overrides::default()))
}

/// Upgrades an installation to this version, and keeps its values.
pub(crate) fn upgrade(args: &UpgradeArgs) -> Result<(), CliError> {
    wait(async {
        let cluster = args.install.target.cluster().await?;
        let namespace = &args.install.target.mesh_namespace;
        let before = apply::installed(&cluster, namespace, &args.revision)
            .await
            .map_err(failed)?;
        let before = before.ok_or_else(|| {
            absent(namespace, &args.revision)
                .hint("`ambit install` installs; --mesh-namespace and --revision name another one")
        })?;
        let mut values = Overrides::default();
        if !args.reset_values {
            let text = before.values.to_string();
            values
                .file("the values of the installation", &text)
                .map_err(|error| failed(error.into()))?;
        } else if args.revision != revisions::DEFAULT {
            let setting = format!("global.revision={}", args.revision);
            let set = values.set(&setting, true);
            set.map_err(|error| failed(error.into()))?;
        }
        run(&args.install, values).await
    })
}

async fn run(args: &InstallArgs, mut overrides: Overrides) -> Result<(), CliError> {
    overrides.extend(args.values.read()?);
    let mut release = Release {
        namespace: args.target.mesh_namespace.clone(),
        ..Release::default()
    };
    // A dry run for a platform that is named needs no cluster.
    if args.dry_run && args.values.platform != "auto" {
        args.values
            .choose_platform(&mut overrides, &args.values.platform)?;
        return print(&Plan::new(release, overrides).map_err(failed)?);
    }
    let cluster = args.target.cluster().await?;
    let (version, minor) = cluster
        .version()
        .await
        .map_err(|error| failed(error.into()))?;
    release.minor = minor;
    let platform = args.values.platform_of(&cluster).await?;
    args.values.choose_platform(&mut overrides, &platform)?;
    let platform = overrides
        .text(&["global", "platform"])
        .unwrap_or_default()
        .to_owned();
    attachment::choose(&cluster, &release.namespace, &mut overrides, &progress)
        .await
        .map_err(failed)?;
    let plan = Plan::new(release, overrides).map_err(failed)?;
    if args.dry_run {
        return print(&plan);
    }
    let named = if platform.is_empty() {
        String::new()
    } else {
        format!(" on {platform}")
    };
    progress(&format!("Kubernetes {version}{named}"));
    let gateway_api = gateway_api::describe(&cluster).await;
    progress(&gateway_api.map_err(|error| failed(error.into()))?);
    let options = Options {
        wait: args.wait.then_some(args.timeout),
        force: args.force_conflicts,
    };
    apply::install(&cluster, &plan, options, &progress)
        .await
        .map_err(|error| {
            let hints: &[&str] = match &error {
                InstallError::NotReady(..) => {
                    &["the same command goes on from here; `ambit check` diagnoses the cluster"]
                }
                InstallError::Images(_) => IMAGE_HINTS,
                _ => &[],
            };
            hints
                .iter()
                .fold(failed(error), |error, hint| error.hint(*hint))
        })?;
    let complete = plan
        .overrides
        .complete()
        .map_err(|error| failed(error.into()))?;
    let notes = render::notes(&plan.release, &complete).map_err(|error| failed(error.into()))?;
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
    wait(async {
        let cluster = args.target.cluster().await?;
        let namespace = &args.target.mesh_namespace;
        let removal = Removal {
            crds: args.crds,
            root: args.root,
            namespace: args.delete_namespace,
        };
        let remove = async || {
            let revision = (namespace.as_str(), args.revision.as_str());
            let removed = remove::uninstall(&cluster, revision, removal, &progress).await;
            removed.map_err(failed)
        };
        // Unenrolment alone reads nothing else: the chart's Job has rights for no more.
        if !args.release_only {
            let known = apply::installed(&cluster, namespace, &args.revision).await;
            let known = known.map_err(failed)?.ok_or_else(|| {
                absent(namespace, &args.revision)
                    .hint("what Helm installed, `helm uninstall` removes")
            })?;
            if !known.has_node_parts() {
                remove().await?;
                return print_line(&format!("The revision {} is uninstalled.", args.revision));
            }
        }
        if args.unlabel || !args.release_only {
            leave(&cluster, args).await?;
        }
        match remove::unenrol_all(&cluster, namespace, args.timeout, &progress).await {
            // They would be left with a redirection to a proxy that is gone.
            Err(error @ InstallError::NotReady(..)) if !args.force_captured => {
                return Err(failed(error)
                    .hint("--force-captured removes the mesh regardless: delete these pods then"));
            }
            Err(InstallError::NotReady(_, pods)) => pods.iter().for_each(|pod| progress(pod)),
            other => other.map_err(failed)?,
        }
        if args.release_only {
            return print_line("No pod is captured any longer.");
        }
        remove().await?;
        print_line("Ambit is uninstalled.")
    })
}

fn absent(namespace: &str, revision: &str) -> CliError {
    failed(InstallError::Absent {
        namespace: namespace.to_owned(),
        revision: revision.to_owned(),
    })
}

/// Removes the mesh labels of namespaces with `--unlabel`; otherwise fails if namespaces are labelled, unless forced.
async fn leave(cluster: &Cluster, args: &UninstallArgs) -> Result<(), CliError> {
    let enrolled = remove::enrolled_namespaces(cluster).await;
    let enrolled = enrolled.map_err(failed)?;
    if args.unlabel {
        for name in &enrolled {
            remove::label(cluster, name, false).await.map_err(failed)?;
            progress(&format!("namespace {name}: label removed"));
        }
    } else if !enrolled.is_empty() && !args.force {
        let what = format!("namespaces are still in the mesh: {}", enrolled.join(", "));
        return Err(CliError::new(ErrorKind::Failed, what)
            .hint("--unlabel removes their labels; --force leaves them: another installation enrols these namespaces again"));
    }
    Ok(())
}

impl Values {
    fn read(&self) -> Result<Overrides, CliError> {
        let mut overrides = Overrides::default();
        for (chart, path) in &self.istio_values {
            let name = path.display().to_string();
            let translation = istio_values::translate(*chart, &name, &text_of(path)?)
                .map_err(|error| failed(error.into()))?;
            for ignored in &translation.ignored {
                progress(&format!("warning: {name}: left out {ignored}"));
            }
            overrides.layer(translation.values);
        }
        for path in &self.files {
            overrides
                .file(&path.display().to_string(), &text_of(path)?)
                .map_err(|error| failed(error.into()))?;
        }
        for (settings, strings) in [(&self.set, false), (&self.set_string, true)] {
            for setting in settings {
                overrides
                    .set(setting, strings)
                    .map_err(|error| failed(error.into()))?;
            }
        }
        Ok(overrides)
    }

    async fn platform_of(&self, cluster: &Cluster) -> Result<String, CliError> {
        if self.platform != "auto" {
            return Ok(self.platform.clone());
        }
        let nodes: Vec<Node> = cluster
            .all(None, None)
            .await
            .map_err(|error| failed(error.into()))?;
        Ok(platform::detect(&nodes).to_owned())
    }

    /// Sets the platform's value: an explicit `--platform` wins over `global.platform` of the values, and these over
    /// detection.
    fn choose_platform(&self, overrides: &mut Overrides, platform: &str) -> Result<(), CliError> {
        let set = overrides.text(&["global", "platform"]).is_some();
        if set && self.platform == "auto" {
            return Ok(());
        }
        let name = if platform == "none" { "" } else { platform };
        overrides
            .set(&format!("global.platform={name}"), true)
            .map_err(|error| failed(error.into()))
    }
}

fn print(plan: &Plan) -> Result<(), CliError> {
    let namespace = plan.namespace();
    let all = [&namespace]
        .into_iter()
        .chain(&plan.crds)
        .chain(&plan.objects);
    let mut text = String::new();
    for object in all {
        text.push_str("---\n");
        text.push_str(&yaml(object)?);
    }
    print_line(text.trim_end())
}

fn yaml(object: &Value) -> Result<String, CliError> {
    serde_saphyr::to_string(object).map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot print a manifest").because(error.to_string())
    })
}

/// Hints for an installation whose images cannot be pulled.
const IMAGE_HINTS: &[&str] = &[
    "no images of Ambit are published: `cargo xtask images --release` builds them (README, \"On Kubernetes\"), and \
     --set global.hub=REGISTRY/PATH,global.tag=TAG says where they are",
    "--set global.imagePullSecrets={NAME} names a Secret with the registry's credentials",
    "the same command goes on from here",
];

/// Prints progress to standard error, apart from the output.
#[expect(clippy::print_stderr, reason = "the command line speaks there")]
pub(crate) fn progress(text: &str) {
    eprintln!("{text}");
}

pub(crate) fn failed(error: InstallError) -> CliError {
    let kind = match &error {
        InstallError::Values(_) => ErrorKind::Usage,
        InstallError::Absent { .. } => ErrorKind::NotFound,
        InstallError::Cluster(ClusterError::Api { source, .. })
            if !matches!(**source, kube::Error::Api(_)) =>
        {
            ErrorKind::Unreachable
        }
        _ => ErrorKind::Failed,
    };
    CliError::new(kind, error.to_string()).because(error)
}

/// Parses the value of `--istio-values`, `CHART=FILE`.
fn istio_values(text: &str) -> Result<(Chart, PathBuf), String> {
    let (chart, file) = text
        .split_once('=')
        .ok_or("write it as istiod=FILE, cni=FILE, ztunnel=FILE or operator=FILE")?;
    Ok((chart.parse()?, file.into()))
}

fn platform_name(text: &str) -> Result<String, String> {
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
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
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
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        for wrong in ["", "m", "x", "5 m", "99999999999999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
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
        let values = Values {
            files: vec![own],
            istio_values: vec![(Chart::Ztunnel, istio)],
            set: vec![],
            set_string: vec![],
            platform: "none".to_owned(),
        };
        let overrides = values.read().unwrap();
        assert_eq!(overrides.text(&["global", "network"]), Some("west"));
        assert_eq!(
            overrides.text(&["global", "logging", "level"]),
            Some("debug")
        );
        assert_eq!(overrides.text(&["ztunnel", "hub"]), None);
        for wrong in ["istiod", "pilot=a.yaml", "=a.yaml"] {
            assert!(istio_values(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_platform_that_is_named_wins_over_one_that_is_set() {
        let values = |platform: &str| Values {
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
            let mut overrides = Overrides::default();
            if let Some(set) = set {
                overrides
                    .set(&format!("global.platform={set}"), false)
                    .unwrap();
            }
            values(given)
                .choose_platform(&mut overrides, found)
                .unwrap();
            assert_eq!(overrides.text(&["global", "platform"]), Some(expected));
        }
    }
}
