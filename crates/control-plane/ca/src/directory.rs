//! Follows the files of a plugged-in certificate authority, which may change at any time.

use std::{path::PathBuf, time::Duration};

use ambit_rt::{DrainWatcher, ErrorChain};

use crate::{material::CaMaterial, trust::TrustPublisher};

/// Interval of reading the files. The kubelet updates mounted Secrets with a delay of up to a minute and without
/// reliable file events.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Reloads the CA from the files of `dir` until the drain. Unusable files are logged once; the current CA stays in
/// force.
pub async fn reload_on_change(dir: PathBuf, publisher: TrustPublisher, mut drain: DrainWatcher) {
    let location = dir.display().to_string();
    let mut logged = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = drain.wait_until_started() => return,
        }
        let from = dir.clone();
        let read = ambit_rt::spawn_blocking("ca files", move || CaMaterial::read_dir(&from)).await;
        let problem = match read {
            Ok(Ok(Some(material))) => match publisher.replace(&material, &location) {
                Ok(_) => None,
                Err(error) => Some(ErrorChain(&error).to_string()),
            },
            Ok(Ok(None)) => Some(format!("the files of {location} are gone")),
            Ok(Err(error)) => Some(ErrorChain(&error).to_string()),
            Err(_) => return,
        };
        if let Some(error) = problem.as_ref().filter(|_| problem != logged) {
            tracing::error!(
                error,
                "the certificate authority is not renewed; the present one stays in force"
            );
        }
        logged = problem;
    }
}
