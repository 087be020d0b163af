//! Parses a pod's UID from cgroup paths.
//!
//! Kubelet names a pod's cgroup `pod<uid>`, systemd's driver with `_` for `-`, below various prefixes
//! (docker in docker, relative paths of another cgroup namespace); the container's id follows.

/// Error of a malformed or contradictory `cgroup` file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    /// Line that is not `hierarchy:controllers:path`.
    #[error("{0:?} is not a line of a cgroup file")]
    MalformedLine(String),
    /// Lines that name different pods or containers.
    #[error("its lines name different pods: {0} and {1}")]
    Contradictory(String, String),
}

/// Returns the pod UID in the text of a process' `/proc/<pid>/cgroup`, if there is one.
///
/// # Errors
/// When a line is malformed, or lines contradict each other.
pub fn pod_of_cgroups(text: &str) -> Result<Option<String>, CgroupError> {
    let mut found: Option<(String, String)> = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let path = line.splitn(3, ':').nth(2);
        let path =
            path.ok_or_else(|| CgroupError::MalformedLine(line.chars().take(256).collect()))?;
        let Some(named) = pod_of_path(path) else {
            continue;
        };
        match &found {
            Some(before) if *before != named => {
                let text = |(uid, container): &(String, String)| format!("{uid}/{container}");
                return Err(CgroupError::Contradictory(text(before), text(&named)));
            }
            _ => found = Some(named),
        }
    }
    Ok(found.map(|(uid, _)| uid))
}

/// Returns the pod UID and container ID in a cgroup path.
fn pod_of_path(path: &str) -> Option<(String, String)> {
    let path = path.strip_suffix(".scope").unwrap_or(path);
    // The innermost pod counts: a cluster may itself run inside a pod.
    let (uid, rest) = path
        .match_indices("pod")
        .filter(|(at, _)| {
            path.get(..*at)
                .is_some_and(|before| before.ends_with(is_punctuation))
        })
        .filter_map(|(at, pod)| parse_uid(path.get(at + pod.len()..)?))
        .last()?;
    let rest = rest.strip_prefix(is_punctuation)?;
    let container = rest.rsplit(is_punctuation).next()?;
    if container.is_empty() {
        return None;
    }
    Some((uid, container.to_owned()))
}

/// Parses a UID of 8-4-4-4-12 hexadecimal digits, with or without one separator between the groups; returns it with the
/// text behind it.
fn parse_uid(text: &str) -> Option<(String, &str)> {
    let mut uid = String::with_capacity(36);
    let mut rest = text;
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0
            && let Some(after) = rest.strip_prefix(is_punctuation)
        {
            uid.push('-');
            rest = after;
        }
        let group = rest.get(..length)?;
        if !group.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        uid.push_str(&group.to_ascii_lowercase());
        rest = rest.get(length..)?;
    }
    Some((uid, rest))
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";
    const CONTAINER_ID: &str = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";

    #[test]
    fn cgroup_paths_of_all_runtimes_are_read() {
        let under = UID.replace('-', "_");
        for path in [
            format!("/kubepods/burstable/pod{UID}/{CONTAINER_ID}"),
            format!("/kubepods/pod{UID}/{CONTAINER_ID}"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{CONTAINER_ID}.scope"
            ),
            format!("/kubepods.slice/kubepods-pod{under}.slice/crio-{CONTAINER_ID}.scope"),
            format!(
                "/kubepods.slice/kubepods-besteffort-pod{under}.slice:cri-containerd:{CONTAINER_ID}"
            ),
            format!(
                "/system.slice/containerd.service/kubepods-pod{under}.slice:cri-containerd:{CONTAINER_ID}"
            ),
            format!("/../../pod{UID}/{CONTAINER_ID}"),
            format!("/docker/6d1f/kubelet/kubepods/burstable/pod{UID}/{CONTAINER_ID}"),
            format!(
                "/kubepods/pod00000000-0000-0000-0000-000000000000/outer/pod{UID}/{CONTAINER_ID}"
            ),
        ] {
            assert_eq!(
                pod_of_cgroups(&format!("0::{path}\n")),
                Ok(Some(UID.to_owned())),
                "{path}"
            );
        }
        let hash = UID.replace('-', "");
        let of_static_pod = format!("0::/kubepods/pod{hash}/{CONTAINER_ID}");
        assert_eq!(pod_of_cgroups(&of_static_pod), Ok(Some(hash)));
    }

    #[test]
    fn other_cgroups_are_no_pods() {
        for path in [
            "/",
            "/init.scope",
            "/user.slice/user-1000.slice/session-1.scope",
            &format!("/podman/pod-{CONTAINER_ID}"),
            &format!("/crio-{CONTAINER_ID}"),
            &format!("/kubepods/burstable/pod{UID}"),
            &format!("/kubepods/burstable/pod{UID}/"),
            &format!("/kubepods/xpod{UID}/{CONTAINER_ID}"),
            "/kubepods/podé/x",
        ] {
            assert_eq!(pod_of_cgroups(&format!("0::{path}")), Ok(None), "{path}");
        }
        assert_eq!(pod_of_cgroups(""), Ok(None));
    }

    #[test]
    fn lines_must_agree_and_be_lines() {
        let other = UID.replace("2c48", "3c48");
        let text = format!(
            "2:cpu:/kubepods/pod{UID}/{CONTAINER_ID}\n1:name=systemd:/kubepods/pod{other}/{CONTAINER_ID}\n"
        );
        assert!(matches!(
            pod_of_cgroups(&text),
            Err(CgroupError::Contradictory(..))
        ));
        let text = format!(
            "2:cpu:/kubepods/pod{UID}/{CONTAINER_ID}\n1:name=systemd:/kubepods/pod{UID}/other\n"
        );
        assert!(matches!(
            pod_of_cgroups(&text),
            Err(CgroupError::Contradictory(..))
        ));
        let text = format!("2:cpu:/\n1:name=systemd:/kubepods/pod{UID}/{CONTAINER_ID}\n");
        assert_eq!(pod_of_cgroups(&text), Ok(Some(UID.to_owned())));
        assert!(matches!(
            pod_of_cgroups("nothing of the kind"),
            Err(CgroupError::MalformedLine(_))
        ));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_text_never_panics(
            text in "(0::)?[/a-f0-9pod._:é-]{0,80}(\\.scope)?\n?.{0,20}",
        ) {
            drop(pod_of_cgroups(&text));
        }
    }
}
