//! Examples in the help of every command. A test parses each of them.

use clap::Command;

/// Commands (the words after `ambit`) and their examples: one on each line, with a comment behind `#`.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "install",
        "ambit install                                        # into the kubeconfig's cluster
ambit install --platform gke --set global.hub=registry.example/ambit
ambit install -f values.yaml --dry-run | kubectl diff -f -
ambit install --istio-values istiod=istiod.yaml      # values of Istio's charts",
    ),
    (
        "upgrade",
        "ambit upgrade                                        # to this version, with the values of before
ambit upgrade --set ztunnel.logLevel=debug",
    ),
    (
        "rollout",
        "ambit rollout                                        # until every node has its new proxy
ambit rollout --timeout 10m -o json",
    ),
    (
        "uninstall",
        "ambit uninstall --unlabel                            # pods leave the mesh, then it is removed
ambit uninstall --force --crds                       # with all objects of Istio's kinds",
    ),
    (
        "check",
        "ambit check                                          # can the mesh be installed here?
ambit check shop                                     # what hinders pods of a namespace
ambit check --on-node                                # with a pod on each node that looks at its kernel
ambit check --from istio                             # which objects of an Istio mesh work, change or lapse
kubectl get virtualservices,gateways,ns -A -o yaml | ambit check --from istio -",
    ),
    (
        "enroll",
        "ambit enroll shop                                    # running pods join, without a restart
ambit enroll shop billing --timeout 5m",
    ),
    (
        "unenroll",
        "ambit unenroll shop                                  # open connections go on",
    ),
    (
        "status",
        "ambit status
ambit status --node node-2 -o json
ambit status --lab default",
    ),
    (
        "problems",
        "ambit problems -n shop                               # what has no effect, and why
ambit problems --lab default",
    ),
    (
        "lint",
        "ambit lint policies/                                 # among the objects of the cluster
ambit lint --alone --strict shop.yaml                # in a pipeline, without a cluster",
    ),
    (
        "convert",
        "ambit convert virtualservices.yaml > httproutes.yaml
kubectl get virtualservices -A -o yaml | ambit convert -",
    ),
    (
        "dashboard",
        "ambit dashboard                                      # opens a browser
ambit dashboard --lab default --no-open --port 8088",
    ),
    (
        "pod",
        "ambit pod -n shop frontend                           # is it in the mesh, and why
ambit pod --lab default shop/client",
    ),
    (
        "workloads",
        "ambit workloads -n shop
ambit workloads --pod shop/frontend-6f7b             # as the proxy of that pod knows them
ambit workloads --control -o json",
    ),
    (
        "services",
        "ambit services -n shop
ambit services --node node-1",
    ),
    (
        "policies",
        "ambit policies -n shop
ambit policies --control",
    ),
    (
        "certificates",
        "ambit certificates --node node-1
ambit certificates --pod shop/frontend-6f7b -o json",
    ),
    (
        "connections",
        "ambit connections --node node-1
ambit connections --pod shop/frontend-6f7b",
    ),
    (
        "log-level",
        "ambit log-level --node node-1                        # shows it
ambit log-level --node node-1 info,access=debug
ambit log-level --control --reset",
    ),
    (
        "explain",
        "ambit explain --from shop/frontend --to orders --path /v2/items
ambit explain --from shop/frontend --to billing/api:8443 -X DELETE -H 'x-tenant: blue'
ambit explain --from shop/frontend --to orders --token /tmp/token -o json",
    ),
    (
        "policy explain",
        "ambit policy explain --pod billing/db-0 --from 10.0.1.7 --to billing/db-0 --port 5432
ambit policy explain --lab default --from spiffe://cluster.local/ns/shop/sa/web --to shop/orders --port 8080",
    ),
    (
        "policy suggest",
        "ambit policy suggest --for 10m -n shop > policies.yaml
ambit policy suggest --file flows.json               # of `ambit flows -o json`",
    ),
    (
        "policy test",
        "ambit policy test new.yaml                           # who of those seen would be refused
ambit policy test --enforce-dry-run --strict
ambit policy test --lab default new.yaml",
    ),
    (
        "flows",
        "ambit flows                                          # every connection and request, as they happen
ambit flows --denied -n shop                         # what is refused of, or by, the namespace, and why
ambit flows --from shop/frontend --to shop/orders
ambit flows --plaintext -o json | jq .source.workload",
    ),
    (
        "waypoint generate",
        "ambit waypoint generate -n shop | kubectl apply -f -",
    ),
    (
        "waypoint apply",
        "ambit waypoint apply -n shop --enroll-namespace --wait
ambit waypoint apply -n shop --name edge --for all",
    ),
    (
        "waypoint list",
        "ambit waypoint list -A",
    ),
    (
        "waypoint status",
        "ambit waypoint status -n shop waypoint",
    ),
    (
        "waypoint routes",
        "ambit waypoint routes -n shop
ambit waypoint routes -A -o json",
    ),
    (
        "waypoint policies",
        "ambit waypoint policies -n shop --waypoint waypoint",
    ),
    (
        "waypoint endpoints",
        "ambit waypoint endpoints -n shop                     # with health and ejections",
    ),
    (
        "waypoint limits",
        "ambit waypoint limits -n shop",
    ),
    (
        "waypoint delete",
        "ambit waypoint delete -n shop waypoint",
    ),
    (
        "completion",
        "source <(ambit completion bash)                      # for this shell
ambit completion zsh > ~/.zfunc/_ambit",
    ),
    (
        "man",
        "ambit man ~/.local/share/man/man1",
    ),
    (
        "bug-report",
        "ambit bug-report --output report.tar.gz --log-lines 2000",
    ),
    (
        "version",
        "ambit version                                        # of every part in the cluster, too
ambit version --client",
    ),
    (
        "lab up",
        "ambit lab up manifests/                              # followed while it is up
ambit lab up manifests/ --nodes 3 --ip-family dual",
    ),
    ("lab down", "ambit lab down\nambit lab down --name other"),
    ("lab status", "ambit lab status"),
    (
        "lab exec",
        "ambit lab exec shop/client -- curl -s http://server",
    ),
    (
        "lab logs",
        "ambit lab logs proxy --node node-1 --follow
ambit lab logs shop/server",
    ),
    ("lab list", "ambit lab list"),
    ("lab demo", "ambit lab demo --keep"),
];

/// Adds the examples to the help of all commands.
pub(crate) fn add_examples(command: Command) -> Command {
    add_examples_below(command, &mut Vec::new())
}

fn add_examples_below(command: Command, words: &mut Vec<String>) -> Command {
    let path = words.join(" ");
    let examples = EXAMPLES.iter().find(|(of, _)| *of == path);
    let command = match examples {
        Some((_, examples)) => {
            let examples = examples.replace('\n', "\n  ");
            let further = command.get_after_help().map(|text| format!("\n\n{text}"));
            command.after_help(format!(
                "Examples:\n  {examples}{}",
                further.unwrap_or_default()
            ))
        }
        None => command,
    };
    let names: Vec<_> = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        words.push(name.clone());
        let command = command.mut_subcommand(name, |one| add_examples_below(one, words));
        words.pop();
        command
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Args;

    /// Collects the visible commands that have no subcommands, as the words after `ambit`.
    fn collect_leaf_commands(command: &Command, words: &str, leaves: &mut BTreeSet<String>) {
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        let mut is_leaf = true;
        for one in visible {
            is_leaf = false;
            let words = format!("{words} {}", one.get_name());
            collect_leaf_commands(one, words.trim_start(), leaves);
        }
        if is_leaf {
            leaves.insert(words.to_owned());
        }
    }

    #[test]
    fn every_command_has_examples_in_its_help() {
        let mut found = BTreeSet::new();
        collect_leaf_commands(&Args::command(), "", &mut found);
        let with_examples = EXAMPLES.iter().map(|(words, _)| (*words).to_owned());
        assert_eq!(with_examples.collect::<BTreeSet<_>>(), found);
        let mut command = add_examples(Args::command());
        let help = command.find_subcommand_mut("flows").unwrap().render_help();
        assert!(
            help.to_string().contains("Examples:\n  ambit flows  "),
            "{help}"
        );
    }

    /// Splits a line of shell with a call of `ambit` into the program's arguments.
    fn split_arguments(line: &str) -> Vec<String> {
        let line = line.split(" # ").next().unwrap();
        let line = line.replace("'x-tenant: blue'", "x-tenant:blue");
        let words = line
            .split_whitespace()
            .map(|word| word.trim_end_matches(')'));
        let words = words.skip_while(|word| !word.ends_with("ambit"));
        let words = words.take_while(|word| !["|", ">"].contains(word));
        words
            .map(|word| word.trim_start_matches("<(").to_owned())
            .collect()
    }

    #[test]
    fn examples_are_commands_of_this_version() {
        let command = add_examples(Args::command());
        for (words, examples) in EXAMPLES {
            for line in examples.lines() {
                let arguments = split_arguments(line);
                let of = format!("ambit {words}");
                assert!(arguments.join(" ").starts_with(&of), "{line}");
                let parsed = command.clone().try_get_matches_from(&arguments);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                assert!(line.chars().count() <= 120, "{line}");
            }
        }
    }
}
