//! Runs the commands of the book's pages (`docs/src`), each page in a lab of its own.

use std::fs;

use ambit_testkit::documents::{follow, repository, steps_of};

use crate::support::{Lab, TIMEOUT};

/// Pages with commands for a lab; each has a test below.
const PAGES: [&str; 7] = [
    "enrolment.md",
    "migration.md",
    "observability.md",
    "policy.md",
    "start/laptop.md",
    "troubleshooting.md",
    "waypoints.md",
];

/// Runs the commands of a page in a new lab, and checks their output.
fn walk(page: &str) {
    assert!(PAGES.contains(&page), "{page}");
    let lab = Lab::new();
    let steps = steps_of(&format!("docs/src/{page}"), "lab");
    follow(&steps, 2 * TIMEOUT, |command| lab.shell(command));
}

#[test]
fn every_page_with_commands_for_a_lab_is_walked() {
    let source = repository().join("docs/src");
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
    assert_eq!(found, PAGES);
}

#[test]
fn walk_on_a_laptop() {
    walk("start/laptop.md");
}

#[test]
fn walk_of_enrolment() {
    walk("enrolment.md");
}

#[test]
fn walk_of_policies() {
    walk("policy.md");
}

#[test]
fn walk_with_a_waypoint_beside_policies_that_name_callers() {
    walk("waypoints.md");
}

#[test]
fn walk_of_watching_traffic() {
    walk("observability.md");
}

#[test]
fn walk_of_migration() {
    walk("migration.md");
}

#[test]
fn symptoms_are_as_the_book_shows_them() {
    walk("troubleshooting.md");
}
