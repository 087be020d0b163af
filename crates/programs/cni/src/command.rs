//! Commands of the CNI specification: required variables, actions and output of each.

use std::{
    io::{Read, Write},
    process::ExitCode,
};

use crate::{
    add::add,
    config::{CniVersion, Config, LogLevel, VERSIONS, version_for_errors},
    delegate::DelegateCall,
    environment::Environment,
    error::{CniError, code},
    log, result,
};

/// Maximum bytes that are read from stdin.
const MAX_STDIN: u64 = 4 * 1024 * 1024;

/// Runs the command in `CNI_COMMAND`: reads the configuration from `stdin`, and writes the result or error to `stdout`.
pub fn run(
    environment: &Environment,
    stdin: impl Read,
    mut stdout: impl Write,
    mut stderr: impl Write,
) -> ExitCode {
    let mut input = Vec::new();
    let read = stdin.take(MAX_STDIN).read_to_end(&mut input);
    let outcome = read
        .map_err(|error| CniError::new(code::IO_FAILURE, "cannot read stdin", error.to_string()))
        .and_then(|_| execute(environment, &input));
    let (text, status) = match &outcome {
        Ok(text) => (text.clone(), ExitCode::SUCCESS),
        Err(error) => {
            let line = format!("{}: {error}", environment.command);
            // The message goes to the runtime's log. If even stderr is closed, stdout still has the
            // error.
            drop(writeln!(stderr, "ambit-cni: {line}"));
            if let Ok(config) = Config::parse(&input) {
                log::log_line(&config, LogLevel::Error, &line);
            }
            (error.to_json(version_for_errors(&input)), ExitCode::FAILURE)
        }
    };
    let written = if text.is_empty() {
        Ok(())
    } else {
        writeln!(stdout, "{text}")
    };
    if written.is_ok() {
        status
    } else {
        ExitCode::FAILURE
    }
}

fn execute(environment: &Environment, input: &[u8]) -> Result<String, CniError> {
    match environment.command.as_str() {
        "VERSION" => return Ok(supported_versions(input)),
        "DEL" => return del(environment, input).map(|()| String::new()),
        "ADD" | "CHECK" | "STATUS" | "GC" => {}
        other => {
            return Err(CniError::new(
                code::INVALID_ENVIRONMENT,
                format!("CNI_COMMAND is {other:?}"),
                "expected ADD, DEL, CHECK, STATUS, GC or VERSION",
            ));
        }
    }
    require_variables(environment)?;
    let config = Config::parse(input)?;
    let version = config.version()?;
    let since = match environment.command.as_str() {
        "ADD" => return add(environment, &config, version),
        "CHECK" => CniVersion::V0_4,
        _ => CniVersion::V1_1,
    };
    if version < since {
        return Err(CniError::new(
            code::INCOMPATIBLE_VERSION,
            format!(
                "CNI version {} has no {}",
                version.as_str(),
                environment.command
            ),
            format!("it came with {}", since.as_str()),
        ));
    }
    // This plugin has nothing of its own to check or to collect, and an unavailable agent must not
    // make the node unready: the agent's own pod has to start on it.
    if let Some(call) = DelegateCall::new(environment, &config, version)? {
        match environment.command.as_str() {
            "CHECK" => call.check(),
            "STATUS" => call.status(),
            _ => call.gc(),
        }?;
    }
    Ok(String::new())
}

/// Carries out DEL: removes the pod's network in owned mode. Ambit itself has nothing to undo: the agent unenrols the
/// pod, and the rules vanish with its namespace.
fn del(environment: &Environment, input: &[u8]) -> Result<(), CniError> {
    let well_formed = is_container_id(&environment.container_id)
        && is_interface(&environment.interface)
        && !environment.interface.is_empty();
    let (Ok(config), true) = (Config::parse(input), well_formed) else {
        return Ok(());
    };
    let Ok(version) = config.version() else {
        return Ok(());
    };
    DelegateCall::new(environment, &config, version)?.map_or(Ok(()), |call| call.del())
}

/// Parses a configuration as ADD does, without queries to an agent, and returns the output of ADD.
///
/// # Errors
///
/// Those of ADD for such a configuration.
pub fn dry_run(stdin: &[u8]) -> Result<String, CniError> {
    let config = Config::parse(stdin)?;
    let printed = result::output_result(config.prev_result.as_deref(), config.version()?)?;
    config
        .prev_result
        .as_deref()
        .map(result::parse_addresses)
        .transpose()?;
    Ok(printed)
}

/// Checks that the environment variables that the command requires are set and valid.
fn require_variables(environment: &Environment) -> Result<(), CniError> {
    let Environment {
        command,
        container_id,
        netns,
        interface,
        path,
        ..
    } = environment;
    let for_pod = matches!(command.as_str(), "ADD" | "CHECK");
    let missing: Vec<&str> = [
        ("CNI_CONTAINERID", container_id, for_pod),
        ("CNI_NETNS", netns, for_pod),
        ("CNI_IFNAME", interface, for_pod),
        ("CNI_PATH", path, true),
    ]
    .into_iter()
    .filter(|(_, value, needed)| *needed && value.is_empty())
    .map(|(name, ..)| name)
    .collect();
    let bad = |message: String| {
        Err(CniError::new(
            code::INVALID_ENVIRONMENT,
            message,
            "the runtime must set it",
        ))
    };
    if !missing.is_empty() {
        return bad(format!("{command} needs {}", missing.join(", ")));
    }
    if for_pod && !is_container_id(container_id) {
        return bad(format!("CNI_CONTAINERID {container_id:?} is malformed"));
    }
    if for_pod && !is_interface(interface) {
        return bad(format!("CNI_IFNAME {interface:?} is malformed"));
    }
    Ok(())
}

fn is_container_id(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn is_interface(text: &str) -> bool {
    text.len() <= 15
        && !matches!(text, "." | "..")
        && !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
}

fn supported_versions(input: &[u8]) -> String {
    let list = VERSIONS.map(|version| format!("{version:?}")).join(",");
    format!(
        r#"{{"cniVersion":"{}","supportedVersions":[{list}]}}"#,
        version_for_errors(input)
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates texts that resemble a CNI network configuration, valid or not.
    fn nearly_valid_config() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just(r#""cniVersion":"1.0.0""#.to_owned()),
            Just(r#""prevResult":"#.to_owned()),
            Just(r#"{"cniVersion":"0.4.0","ips":["#.to_owned()),
            Just(r#"{"address":"10.0.0.1/33"}"#.to_owned()),
            Just(r#"{"address":"fd00::1/64","interface":-1}"#.to_owned()),
            "[\\[\\]{},:\"0-9a-z.]{0,6}",
        ];
        proptest::collection::vec(word, 0..12).prop_map(|words| format!("{{{}}}", words.concat()))
    }

    proptest! {
        #[test]
        fn no_configuration_causes_a_panic(
            text in nearly_valid_config(),
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            for input in [text.as_bytes(), &bytes] {
                if let Ok(printed) = dry_run(input) {
                    prop_assert!(serde_json::from_str::<serde_json::Value>(&printed).is_ok());
                }
            }
        }
    }
}
