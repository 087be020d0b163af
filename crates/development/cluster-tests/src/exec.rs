//! Commands in pods' containers, by the API server. A `kubectl` for each takes a tenth of a second of processor time,
//! and tests that wait for a response run hundreds.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{ExitStatus, Output},
};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::{Api, ResourceExt as _, api::AttachParams};
use tokio::io::AsyncReadExt as _;

/// Exit code of a command that did not run, as `kubectl exec` has it.
const NOT_RUN: i32 = 1;

/// Runs a command in the first container of a pod; returns its output. A command that the API server or the kubelet
/// cannot run exits with 1, and its standard error contains the reason.
pub(crate) async fn exec(pods: &Api<Pod>, pod: &Pod, command: &[&str]) -> Output {
    match try_exec(pods, pod, command).await {
        Ok(output) => output,
        Err(error) => output(NOT_RUN, Vec::new(), error.to_string().into_bytes()),
    }
}

async fn try_exec(
    pods: &Api<Pod>,
    pod: &Pod,
    command: &[&str],
) -> Result<Output, Box<dyn std::error::Error + Send + Sync>> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let first = containers.map(|container| &container.name).next();
    let parameters = AttachParams::default().container(first.ok_or("the pod has no container")?);
    let name = pod.name_any();
    let mut process = pods
        .exec(&name, command.iter().copied(), &parameters)
        .await?;
    let status = process.take_status().ok_or("no status")?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut from_stdout, mut from_stderr) = (
        process.stdout().ok_or("no standard output")?,
        process.stderr().ok_or("no standard error")?,
    );
    tokio::try_join!(
        from_stdout.read_to_end(&mut stdout),
        from_stderr.read_to_end(&mut stderr),
    )?;
    let status = status
        .await
        .ok_or("the connection ended without a status")?;
    let code = exit_code(&status);
    if code == NOT_RUN && stderr.is_empty() {
        stderr.extend(status.message.unwrap_or_default().bytes());
    }
    Ok(output(code, stdout, stderr))
}

fn output(code: i32, stdout: Vec<u8>, stderr: Vec<u8>) -> Output {
    Output {
        status: ExitStatus::from_raw(code << 8),
        stdout,
        stderr,
    }
}

/// Returns the exit code in the status of a command that has ended.
fn exit_code(status: &Status) -> i32 {
    if status.status.as_deref() == Some("Success") {
        return 0;
    }
    let causes = status
        .details
        .as_ref()
        .and_then(|details| details.causes.as_ref());
    let code = causes.into_iter().flatten().find_map(|cause| {
        let is_code = cause.reason.as_deref() == Some("ExitCode");
        is_code.then_some(cause.message.as_deref()?.parse().ok()?)
    });
    code.unwrap_or(NOT_RUN)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn code(status: Value) -> i32 {
        exit_code(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn exit_codes_are_in_the_causes_of_a_status() {
        assert_eq!(code(json!({"status": "Success"})), 0);
        let causes = json!([{"reason": "ExitCode", "message": "7"}]);
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}});
        assert_eq!(code(failed), 7);
        assert_eq!(
            code(json!({"status": "Failure", "reason": "InternalError"})),
            NOT_RUN
        );
    }
}
