//! `ambit lint`: finds problems of manifests before they are applied. The control plane's code derives the objects of
//! the lab or cluster twice, without and with the manifests; new problems and those of objects in the manifests are
//! reported, with the findings of [`checks`].

mod checks;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::ExitCode,
};

use ambit_derive::MeshConfig;
use ambit_k8s_api::{Kind, ObjectEvent, ObjectKey};
use ambit_manifests::Snapshot;

use crate::{
    CliError,
    cluster::{Target, wait},
    files::{text_of, unreadable},
    istio::{Outcome, labels},
    labs,
    output::{self, Format},
    problems::{Problem, rows},
    rehearsal::{event, index_of, list, object_key, settings},
};

/// Flags of `ambit lint`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LintArgs {
    /// Manifests: files, directories, or - for standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Evaluate the manifests by themselves, without the objects of a lab or cluster
    #[arg(long, conflicts_with_all = ["kubeconfig", "context"])]
    alone: bool,
    /// Lab that the manifests are for; otherwise the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    lab: Option<String>,
    #[command(flatten)]
    target: Target,
    /// Fail on warnings, too
    #[arg(long)]
    strict: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Prints the problems; fails if one is an error.
pub(crate) fn run(args: &LintArgs) -> Result<ExitCode, CliError> {
    let manifests = read(&args.files)?;
    let (mut config, present) = if args.alone {
        (MeshConfig::default(), Vec::new())
    } else {
        present(args)?
    };
    config.root_namespace = args.target.mesh_namespace.as_str().into();
    let problems = lint(config, present, manifests);
    output::print(args.output, &problems, || rows(&problems))?;
    let fails = problems
        .iter()
        .any(|problem| args.strict || problem.is_error());
    Ok(ExitCode::from(u8::from(fails)))
}

/// Reads the objects of the manifests, and the documents that cannot be read.
fn read(files: &[PathBuf]) -> Result<Snapshot, CliError> {
    let mut all = Snapshot::default();
    for path in files {
        let snapshot = if path.is_dir() {
            ambit_manifests::read(&[path]).map_err(|error| unreadable(path, error))?
        } else {
            ambit_manifests::parse(path, &text_of(path)?)
        };
        all.objects.extend(snapshot.objects);
        all.problems.extend(snapshot.problems);
        all.unread.extend(snapshot.unread);
    }
    Ok(all)
}

/// Reads the mesh settings and the current objects of the lab or cluster.
fn present(args: &LintArgs) -> Result<(MeshConfig, Vec<ObjectEvent>), CliError> {
    if let Some(lab) = args.target.lab(args.lab.as_deref()) {
        let objects = labs::find(&lab)?.objects().map_err(labs::client_error)?;
        let events = objects.iter().map(event).collect::<Result<_, _>>()?;
        return Ok((MeshConfig::default(), events));
    }
    wait(async {
        let cluster = args.target.cluster().await?;
        let config = settings(&cluster, &args.target.mesh_namespace).await?;
        let mut events = Vec::new();
        // Secrets and other people's ConfigMaps have no part in what is found.
        let kinds = Kind::ALL.iter();
        for kind in kinds.filter(|kind| !matches!(kind, Kind::Secret | Kind::ConfigMap)) {
            for value in list(&cluster, *kind).await? {
                events.push(event(&value)?);
            }
        }
        Ok((config, events))
    })
}

/// Returns the problems that the manifests have or cause, evaluated together with the `present` objects.
fn lint(config: MeshConfig, present: Vec<ObjectEvent>, manifests: Snapshot) -> Vec<Problem> {
    let known: BTreeSet<Found> = survey(config.clone(), &present).into_iter().collect();
    let mut after: BTreeMap<ObjectKey, ObjectEvent> = present
        .into_iter()
        .map(|event| (object_key(&event), event))
        .collect();
    let linted: BTreeSet<ObjectKey> = manifests.objects.keys().cloned().collect();
    for (key, (object, origin)) in manifests.objects {
        let origin = Some(origin);
        after.insert(key, ObjectEvent::Applied { object, origin });
    }
    let after: Vec<ObjectEvent> = after.into_values().collect();
    let documents = manifests.problems.into_iter().chain(manifests.unread);
    let unreadable = documents.map(|problem| Problem {
        severity: "error".to_owned(),
        object: problem
            .object
            .map(|key| key.to_string())
            .unwrap_or_default(),
        field: ".".to_owned(),
        message: problem.message,
        origin: Some(problem.origin.to_string()),
    });
    let surveyed = survey(config, &after)
        .into_iter()
        .filter(|found| linted.contains(&found.object) || !known.contains(found))
        .map(Problem::from);
    let checked = checks::all(&after, &linted).into_iter().map(Problem::from);
    let marked = marks(&after, &linted);
    unreadable
        .chain(surveyed)
        .chain(checked)
        .chain(marked)
        .collect()
}

/// Returns warnings for Istio's labels and annotations on linted objects that Ambit ignores, or treats differently.
fn marks(objects: &[ObjectEvent], linted: &BTreeSet<ObjectKey>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for event in objects {
        let ObjectEvent::Applied { object, origin } = event else {
            continue;
        };
        if !linted.contains(&object.key()) {
            continue;
        }
        let marks = labels::of_object(object).into_iter();
        let marks = marks.filter(|mark| mark.outcome != Outcome::Works);
        problems.extend(marks.map(|mark| Problem {
            severity: "warning".to_owned(),
            object: mark.object,
            field: mark.field,
            message: format!("{}; {}", mark.effect, mark.advice),
            origin: origin.as_ref().map(ToString::to_string),
        }));
    }
    problems
}

type Found = ambit_derive::Problem;

fn survey(config: MeshConfig, objects: &[ObjectEvent]) -> Vec<Found> {
    let mut index = index_of(config, objects);
    index.flush();
    index.survey()
}

#[cfg(test)]
mod tests;
