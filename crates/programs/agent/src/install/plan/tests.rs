//! Tests plans for directories of every kind, in every mode: installation followed by removal leaves foreign files
//! unchanged byte by byte.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LONG_ABSENCE: Duration = Duration::from_secs(100);

fn file(name: &str, text: &str) -> ConfFile {
    ConfFile {
        name: name.to_owned(),
        text: Ok(text.to_owned()),
        age: LONG_ABSENCE,
    }
}

fn conf_list(kinds: &[&str]) -> String {
    let plugins: Vec<_> = kinds.iter().map(|kind| json!({ "type": kind })).collect();
    json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}).to_string()
}

const SINGLE_PLUGIN_CONF: &str =
    r#"{"name":"net", "cniVersion":"0.2.0","type":"flannel","mtu":1.50}"#;

fn desired(mode: InstallMode) -> DesiredConfig {
    DesiredConfig {
        mode,
        primary: None,
        own_name: None,
        file_mode: 0o600,
        entry: PluginEntry {
            log_level: "info".to_owned(),
            run_dir: "/var/run/istio-cni".into(),
            exclude_namespaces: vec!["kube-system".to_owned()],
            pod_namespace: "istio-system".to_owned(),
            wait_seconds: 90,
            net_dir: "/etc/cni/net.d".into(),
            state_dir: "/var/lib/cni/ambit".into(),
        },
    }
}

fn perform_actions(files: &mut Vec<ConfFile>, actions: &[FileAction]) {
    for action in actions {
        match action {
            FileAction::Remove { name } => files.retain(|file| file.name != *name),
            FileAction::Write {
                name,
                text,
                expected,
            } => {
                let there = files.iter().position(|file| file.name == *name);
                if let Some(expected) = expected {
                    let held = there.and_then(|at| files[at].text.as_ref().ok());
                    assert_eq!(held, Some(expected));
                }
                files.retain(|file| file.name != *name);
                files.push(file(name, text));
                files.sort_by(|a, b| a.name.cmp(&b.name));
            }
        }
    }
}

/// Applies plans until no changes are left, and returns the state; panics if a second pass still has changes.
fn run_until_settled(files: &mut Vec<ConfFile>, desired: &DesiredConfig) -> InstallState {
    let first = plan(files, desired, GRACE_WITHOUT_PRIMARY);
    perform_actions(files, &first.actions);
    let second = plan(files, desired, GRACE_WITHOUT_PRIMARY);
    assert_eq!(second.actions, [], "not settled: {files:?}");
    assert_eq!(second.state, first.state);
    first.state
}

fn installed_state(mode: InstallMode, file: &str) -> InstallState {
    InstallState::Installed {
        mode,
        file: file.to_owned(),
    }
}

fn parse_file(files: &[ConfFile], name: &str) -> Value {
    let file = files.iter().find(|file| file.name == name).unwrap();
    serde_json::from_str(file.text.as_ref().unwrap()).unwrap()
}

fn file_names(files: &[ConfFile]) -> Vec<&str> {
    files.iter().map(|file| file.name.as_str()).collect()
}

fn plugin_kinds(files: &[ConfFile], name: &str) -> Vec<String> {
    let plugins = parse_file(files, name)["plugins"]
        .as_array()
        .unwrap()
        .clone();
    let kind = |plugin: &Value| plugin["type"].as_str().unwrap().to_owned();
    plugins.iter().map(kind).collect()
}

#[test]
fn an_owned_configuration_comes_first_and_touches_nothing() {
    let mut files = vec![file("10-a.conflist", &conf_list(&["bridge", "portmap"]))];
    let before = files[0].clone();
    assert_eq!(
        run_until_settled(&mut files, &desired(InstallMode::Auto)),
        installed_state(InstallMode::Owned, "10-a.conflist")
    );
    assert_eq!(
        file_names(&files),
        ["02-ambit-cni.conflist", "10-a.conflist"]
    );
    assert_eq!(files[1], before);
    let own = parse_file(&files, "02-ambit-cni.conflist");
    assert_eq!(
        own["name"], "net",
        "runtimes file what they remember under it"
    );
    assert_eq!(own["cniVersion"], "1.0.0");
    let entry = &own["plugins"][0];
    assert_eq!(entry["type"], "ambit-cni");
    assert_eq!(
        entry["delegate"],
        json!({"netDir": "/etc/cni/net.d", "stateDir": "/var/lib/cni/ambit"})
    );
    assert_eq!(entry["capabilities"]["portMappings"], true);
    assert_eq!(entry["membership"], "/etc/cni/net.d/ambit-cni.membership");
    assert!(own["plugins"].as_array().unwrap().len() == 1);
}

#[test]
fn owned_configuration_has_the_primary_networks_properties() {
    let primary = r#"{"cniVersion":"1.1.0","cniVersions":["0.4.0"],"name":"x","disableCheck":"true",
        "disableGC":true,"plugins":[{"type":"a","capabilities":{"of.the.future":true}}]}"#;
    let mut files = vec![file("10-a.conflist", primary)];
    run_until_settled(&mut files, &desired(InstallMode::Owned));
    let own = parse_file(&files, "02-ambit-cni.conflist");
    assert_eq!(own["cniVersions"], json!(["0.4.0"]));
    assert_eq!(own["disableCheck"], "true");
    assert_eq!(own["disableGC"], true);
    assert_eq!(own["plugins"][0]["capabilities"]["of.the.future"], true);
    // Its owner changes it.
    files[1] = file("10-a.conflist", &conf_list(&["b"]));
    run_until_settled(&mut files, &desired(InstallMode::Owned));
    assert_eq!(parse_file(&files, "02-ambit-cni.conflist")["name"], "net");
}

#[test]
fn our_name_comes_before_any_primary() {
    for (primary, expected) in [
        ("10-a.conflist", "02-ambit-cni.conflist"),
        ("05-cilium.conflist", "02-ambit-cni.conflist"),
        ("01-a.conflist", "00-ambit-cni.conflist"),
        ("00-a.conflist", "0-ambit-cni.conflist"),
        ("-a.conflist", "!ambit-cni.conflist"),
    ] {
        let mut files = vec![file(primary, &conf_list(&["a"]))];
        run_until_settled(&mut files, &desired(InstallMode::Owned));
        assert_eq!(file_names(&files), [expected, primary]);
    }
    let mut files = vec![file("!a.conflist", &conf_list(&["a"]))];
    let state = run_until_settled(&mut files, &desired(InstallMode::Owned));
    assert!(matches!(state, InstallState::Waiting(_)));
    // A foreign file of that name is left alone.
    let mut files = vec![
        file("02-ambit-cni.conflist", "junk"),
        file("10-a.conflist", &conf_list(&["a"])),
    ];
    run_until_settled(&mut files, &desired(InstallMode::Owned));
    assert_eq!(files[1].text.as_deref(), Ok("junk"));
    // A name that was chosen goes, if it can.
    let mut chosen = desired(InstallMode::Owned);
    for (name, expected) in [
        ("03-x.conflist", "03-x.conflist"),
        ("99-x.conflist", "02-ambit-cni.conflist"),
    ] {
        chosen.own_name = Some(name.to_owned());
        let mut files = vec![file("10-a.conflist", &conf_list(&["a"]))];
        run_until_settled(&mut files, &chosen);
        assert_eq!(files[0].name, expected);
    }
}

#[test]
fn a_primary_that_reads_the_directory_itself_is_chained() {
    let mut files = vec![
        file("00-multus.conf", r#"{"name":"m","type":"multus"}"#),
        file("10-a.conflist", &conf_list(&["a"])),
    ];
    assert_eq!(
        run_until_settled(&mut files, &desired(InstallMode::Auto)),
        installed_state(InstallMode::Chained, "00-multus.conf")
    );
}

#[test]
fn the_list_in_force_is_chained_and_no_other() {
    let mut files = vec![
        file("00-broken.conflist", "{"),
        file("01-empty.conflist", &conf_list(&[])),
        file("10-a.conflist", &conf_list(&["a"])),
        file("20-b.conflist", &conf_list(&["b"])),
    ];
    let chained = desired(InstallMode::Chained);
    assert_eq!(
        run_until_settled(&mut files, &chained),
        installed_state(InstallMode::Chained, "10-a.conflist")
    );
    assert_eq!(plugin_kinds(&files, "10-a.conflist"), ["a", "ambit-cni"]);
    assert_eq!(plugin_kinds(&files, "20-b.conflist"), ["b"]);
    // One that comes before it appears.
    files.insert(2, file("05-c.conflist", &conf_list(&["c"])));
    assert_eq!(
        run_until_settled(&mut files, &chained),
        installed_state(InstallMode::Chained, "05-c.conflist")
    );
    assert_eq!(plugin_kinds(&files, "05-c.conflist"), ["c", "ambit-cni"]);
    assert_eq!(plugin_kinds(&files, "10-a.conflist"), ["a"]);
    // Its owner rewrites it.
    files[2] = file("05-c.conflist", &conf_list(&["c", "d"]));
    run_until_settled(&mut files, &chained);
    assert_eq!(
        plugin_kinds(&files, "05-c.conflist"),
        ["c", "d", "ambit-cni"]
    );
    // It goes.
    files.remove(2);
    assert_eq!(
        run_until_settled(&mut files, &chained),
        installed_state(InstallMode::Chained, "10-a.conflist")
    );
}

#[test]
fn unreadable_primary_list_is_not_replaced_by_another() {
    for mode in [InstallMode::Owned, InstallMode::Chained] {
        let mut linked = file("10-a.conflist", "");
        linked.text = Err("no such file".to_owned());
        let mut files = vec![linked, file("20-b.conflist", &conf_list(&["b"]))];
        let InstallState::Waiting(why) = run_until_settled(&mut files, &desired(mode)) else {
            panic!("{mode:?} is installed beside a list that may be in force");
        };
        assert!(why.starts_with("10-a.conflist cannot be read"), "{why}");
        assert_eq!(file_names(&files), ["10-a.conflist", "20-b.conflist"]);
        assert_eq!(plugin_kinds(&files, "20-b.conflist"), ["b"]);
    }
}

#[test]
fn the_pinned_file_is_chained_under_either_ending() {
    let mut pinned = desired(InstallMode::Chained);
    pinned.primary = Some("20-b.conf".to_owned());
    let mut files = vec![
        file("10-a.conflist", &conf_list(&["a"])),
        file("20-b.conflist", &conf_list(&["b"])),
    ];
    run_until_settled(&mut files, &pinned);
    assert_eq!(plugin_kinds(&files, "10-a.conflist"), ["a"]);
    assert_eq!(plugin_kinds(&files, "20-b.conflist"), ["b", "ambit-cni"]);
    let mut owned = desired(InstallMode::Owned);
    owned.primary = pinned.primary;
    run_until_settled(&mut files, &owned);
    let own = parse_file(&files, "02-ambit-cni.conflist");
    assert_eq!(own["plugins"][0]["delegate"]["primary"], "20-b.conf");
}

#[test]
fn a_single_plugin_is_copied_into_a_list_and_stays() {
    let mut files = vec![file("10-flannel.conf", SINGLE_PLUGIN_CONF)];
    run_until_settled(&mut files, &desired(InstallMode::Chained));
    assert_eq!(
        file_names(&files),
        ["02-ambit-cni.conflist", "10-flannel.conf"]
    );
    assert_eq!(files[1].text.as_deref(), Ok(SINGLE_PLUGIN_CONF));
    let own = parse_file(&files, "02-ambit-cni.conflist");
    assert_eq!(own["cniVersion"], "0.2.0", "the version is the primary's");
    assert_eq!(own["name"], "net");
    assert_eq!(own["plugins"][0]["mtu"], 1.5);
    assert_eq!(own["plugins"][1]["type"], "ambit-cni");
    // Its owner changes it: the copy follows. Then it becomes a list.
    files[1] = file("10-flannel.conf", r#"{"name":"net","type":"else"}"#);
    run_until_settled(&mut files, &desired(InstallMode::Chained));
    assert_eq!(
        plugin_kinds(&files, "02-ambit-cni.conflist"),
        ["else", "ambit-cni"]
    );
    files[1] = file("10-flannel.conflist", &conf_list(&["x"]));
    run_until_settled(&mut files, &desired(InstallMode::Chained));
    assert_eq!(file_names(&files), ["10-flannel.conflist"]);
}

#[test]
fn duplicates_old_entries_and_other_modes_are_cleared() {
    let own = conf_list(&["ambit-cni"]);
    let mut files = vec![
        file("00-ambit-cni.conflist", &own),
        file(
            "10-a.conflist",
            &conf_list(&["ambit-cni", "a", "ambit-cni"]),
        ),
        file("YYY-ambit-cni.conf", r#"{"name":"x","type":"ambit-cni"}"#),
    ];
    run_until_settled(&mut files, &desired(InstallMode::Chained));
    assert_eq!(file_names(&files), ["10-a.conflist"]);
    assert_eq!(plugin_kinds(&files, "10-a.conflist"), ["a", "ambit-cni"]);
    run_until_settled(&mut files, &desired(InstallMode::Owned));
    assert_eq!(
        file_names(&files),
        ["02-ambit-cni.conflist", "10-a.conflist"]
    );
    assert_eq!(plugin_kinds(&files, "10-a.conflist"), ["a"]);
    run_until_settled(&mut files, &desired(InstallMode::Standalone));
    assert_eq!(file_names(&files), ["10-a.conflist", "YYY-ambit-cni.conf"]);
    let standalone = parse_file(&files, "YYY-ambit-cni.conf");
    assert_eq!(standalone["type"], "ambit-cni");
    assert_eq!(standalone["cniVersion"], "0.3.1");
    let actions = removal_actions(&files);
    perform_actions(&mut files, &actions);
    assert_eq!(file_names(&files), ["10-a.conflist"]);
    assert_eq!(plugin_kinds(&files, "10-a.conflist"), ["a"]);
}

#[test]
fn without_a_primary_ours_stays_for_a_while_only() {
    let mut files = Vec::new();
    let state = run_until_settled(&mut files, &desired(InstallMode::Auto));
    assert!(matches!(state, InstallState::Waiting(_)) && files.is_empty());
    let mut files = vec![file("10-a.conflist", &conf_list(&["a"]))];
    run_until_settled(&mut files, &desired(InstallMode::Auto));
    files.pop();
    let soon = plan(&files, &desired(InstallMode::Auto), Duration::from_secs(1));
    assert_eq!(soon.actions, []);
    assert_eq!(
        soon.next_check,
        Some(GRACE_WITHOUT_PRIMARY.saturating_sub(Duration::from_secs(1)))
    );
    assert!(matches!(soon.state, InstallState::Waiting(_)));
    run_until_settled(&mut files, &desired(InstallMode::Auto));
    assert!(
        files.is_empty(),
        "the node must not look as if it had a network"
    );
}

#[test]
fn a_file_being_written_changes_nothing_yet() {
    let mut files = vec![
        file("10-a.conflist", "{\"na"),
        file("20-b.conflist", &conf_list(&["b"])),
    ];
    files[0].age = Duration::from_millis(500);
    for mode in [InstallMode::Owned, InstallMode::Chained] {
        let settling = plan(&files, &desired(mode), Duration::ZERO);
        assert_eq!(
            (settling.actions, settling.state),
            (vec![], InstallState::Settling)
        );
        assert_eq!(settling.next_check, Some(Duration::from_millis(1500)));
    }
    files[0].age = LONG_ABSENCE;
    run_until_settled(&mut files, &desired(InstallMode::Chained));
    assert_eq!(plugin_kinds(&files, "20-b.conflist"), ["b", "ambit-cni"]);
}

fn foreign_files() -> impl Strategy<Value = Vec<ConfFile>> {
    let text = prop_oneof![
        Just(SINGLE_PLUGIN_CONF.to_owned()),
        Just(conf_list(&["a"])),
        Just(conf_list(&["a", "b"])),
        Just("{\n  \"name\": \"n\",\n  \"plugins\": [\n    {\"type\": \"c\"}\n  ]\n}\n".to_owned()),
        Just("{ \"na".to_owned()),
        Just(r#"{"name":"m","type":"multus"}"#.to_owned()),
        Just(conf_list(&[])),
    ];
    let name = "[0-9]{2}-[a-z]\\.(conf|conflist|json)";
    proptest::collection::btree_map(name, text, 0..5).prop_map(|files| {
        let files = files.iter();
        files.map(|(name, text)| file(name, text)).collect()
    })
}

fn modes() -> impl Strategy<Value = InstallMode> {
    prop_oneof![
        Just(InstallMode::Auto),
        Just(InstallMode::Owned),
        Just(InstallMode::Chained),
        Just(InstallMode::Standalone),
    ]
}

proptest! {
    #[test]
    fn installing_and_removing_leaves_every_byte(
        before in foreign_files(),
        modes in proptest::collection::vec(modes(), 1..4),
    ) {
        let mut files = before.clone();
        for mode in modes {
            let state = run_until_settled(&mut files, &desired(mode));
            if let InstallState::Installed { mode: InstallMode::Owned | InstallMode::Chained, .. } = state {
                let first = files.iter().find_map(|file| file.network().ok()).unwrap();
                let last = first.plugins.last().unwrap();
                prop_assert!(last.is_ours(), "{first:?}");
            }
        }
        let actions = removal_actions(&files);
        perform_actions(&mut files, &actions);
        prop_assert_eq!(files, before);
    }
}
