//! Runs the commands of the book's pages (`docs/src`), each page in a lab of its own.

use std::fs;

use ambit_testkit::documents::{parse_file_steps, repository_root, run_steps};

use crate::support::{Lab, TIMEOUT};

/// Pages with commands for a lab; each has a test below.
const BOOK_PAGES: [&str; 7] = [
    "enrolment.md",
    "migration.md",
    "observability.md",
    "policy.md",
    "start/laptop.md",
    "troubleshooting.md",
    "waypoints.md",
];

/// Runs the commands of a page in a new lab, and checks their output.
fn run_page(page: &str) {
    assert!(BOOK_PAGES.contains(&page), "{page}");
    let lab = Lab::new();
    let steps = parse_file_steps(&format!("docs/src/{page}"), "lab");
    run_steps(&steps, 2 * TIMEOUT, |command| lab.shell(command));
}

#[test]
fn every_page_with_commands_for_a_lab_is_walked() {
    let source = repository_root().join("docs/src");
    let mut found = Vec::new();
    let mut open = vec![source.clone()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if let Ok(text) = fs::read_to_string(&path)
                && text.contains("<!-- run: lab")
            {
                let page = path.strip_prefix(&source).unwrap();
                found.push(page.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    assert_eq!(found, BOOK_PAGES);
}

#[test]
fn walk_on_a_laptop() {
    run_page("start/laptop.md");
}

#[test]
fn walk_of_enrolment() {
    run_page("enrolment.md");
}

#[test]
fn walk_of_policies() {
    run_page("policy.md");
}

#[test]
fn walk_with_a_waypoint_beside_policies_that_name_callers() {
    run_page("waypoints.md");
}

#[test]
fn walk_of_watching_traffic() {
    run_page("observability.md");
}

#[test]
fn walk_of_migration() {
    run_page("migration.md");
}

#[test]
fn symptoms_are_as_the_book_shows_them() {
    run_page("troubleshooting.md");
}
