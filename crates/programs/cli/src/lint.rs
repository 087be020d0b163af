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
    cluster::{Target, block_on},
    files::{read_text, unreadable_file_error},
    istio::{Outcome, labels},
    labs,
    output::{self, OutputFormat},
    policy_test::{build_index, list, load_settings, object_key, to_event},
    problems::{Problem, problems_table},
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
    output: OutputFormat,
}

/// Prints the problems; fails if one is an error.
pub(crate) fn run(args: &LintArgs) -> Result<ExitCode, CliError> {
    let manifests = read_manifests(&args.files)?;
    let (mut config, present) = if args.alone {
        (MeshConfig::default(), Vec::new())
    } else {
        load_existing_objects(args)?
    };
    config.root_namespace = args.target.mesh_namespace.as_str().into();
    let problems = lint(config, present, manifests);
    output::print_formatted(args.output, &problems, || problems_table(&problems))?;
    let fails = problems
        .iter()
        .any(|problem| args.strict || problem.is_error());
    Ok(ExitCode::from(u8::from(fails)))
}

/// Reads the objects of the manifests, and notes documents that cannot be parsed.
fn read_manifests(files: &[PathBuf]) -> Result<Snapshot, CliError> {
    let mut all = Snapshot::default();
    for path in files {
        let snapshot = if path.is_dir() {
            ambit_manifests::read_snapshot(&[path])
                .map_err(|error| unreadable_file_error(path, error))?
        } else {
            ambit_manifests::parse(path, &read_text(path)?)
        };
        all.objects.extend(snapshot.objects);
        all.problems.extend(snapshot.problems);
        all.ignored_documents.extend(snapshot.ignored_documents);
    }
    Ok(all)
}

/// Reads the settings and the existing objects of the lab or cluster.
fn load_existing_objects(args: &LintArgs) -> Result<(MeshConfig, Vec<ObjectEvent>), CliError> {
    if let Some(lab) = args.target.lab_name(args.lab.as_deref()) {
        let objects = labs::find_lab(&lab)?
            .objects()
            .map_err(labs::client_error)?;
        let events = objects.iter().map(to_event).collect::<Result<_, _>>()?;
        return Ok((MeshConfig::default(), events));
    }
    block_on(async {
        let cluster = args.target.connect().await?;
        let config = load_settings(&cluster, &args.target.mesh_namespace).await?;
        let mut events = Vec::new();
        // Secrets and other people's ConfigMaps have no part in what is found.
        let kinds = Kind::ALL.iter();
        for kind in kinds.filter(|kind| !matches!(kind, Kind::Secret | Kind::ConfigMap)) {
            for value in list(&cluster, *kind).await? {
                events.push(to_event(&value)?);
            }
        }
        Ok((config, events))
    })
}

/// Returns the problems that the manifests have or cause, evaluated together with the `present` objects.
fn lint(config: MeshConfig, present: Vec<ObjectEvent>, manifests: Snapshot) -> Vec<Problem> {
    let known: BTreeSet<DerivedProblem> = derive_problems(config.clone(), &present)
        .into_iter()
        .collect();
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
    let documents = manifests
        .problems
        .into_iter()
        .chain(manifests.ignored_documents);
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
    let surveyed = derive_problems(config, &after)
        .into_iter()
        .filter(|found| linted.contains(&found.object) || !known.contains(found))
        .map(Problem::from);
    let checked = checks::run_checks(&after, &linted)
        .into_iter()
        .map(Problem::from);
    let marked = label_problems(&after, &linted);
    unreadable
        .chain(surveyed)
        .chain(checked)
        .chain(marked)
        .collect()
}

/// Returns warnings for Istio's labels and annotations on linted objects that Ambit ignores, or treats differently.
fn label_problems(objects: &[ObjectEvent], linted_keys: &BTreeSet<ObjectKey>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for event in objects {
        let ObjectEvent::Applied { object, origin } = event else {
            continue;
        };
        if !linted_keys.contains(&object.key()) {
            continue;
        }
        let marks = labels::effects_of_object(object).into_iter();
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

type DerivedProblem = ambit_derive::Problem;

fn derive_problems(config: MeshConfig, objects: &[ObjectEvent]) -> Vec<DerivedProblem> {
    let mut index = build_index(config, objects);
    index.flush();
    index.all_problems()
}

#[cfg(test)]
mod tests;
