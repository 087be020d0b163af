//! Owned mode: calls the plugins of the primary CNI's configuration, as a container runtime does.
//!
//! The configuration is read at each call, so that the next pod gets the current one. For one pod,
//! the configuration of its ADD stays in force until DEL.

use std::{
    thread,
    time::{Duration, Instant},
};

use ambit_cni_conf::{
    Network, Plugin, Primary, directory,
    json::{self, Object},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    attachment::{Attachment, Store, collect},
    config::{Config, Delegate, UNVERSIONED, VERSIONS, Version},
    environment::Environment,
    error::{CniError, code},
    exec, result,
};

/// Interval of checks while the primary CNI's configuration is missing.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Delegation of a command to the primary CNI's plugins.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    environment: &'a Environment,
    config: &'a Config,
    delegate: &'a Delegate,
    /// CNI version that the runtime uses.
    version: Version,
}

impl<'a> Call<'a> {
    /// Creates the delegation; `None` in chained mode, where the runtime calls the primary's plugins itself.
    ///
    /// # Errors
    ///
    /// When this plugin is called by a plugin that it has called itself.
    pub(crate) fn new(
        environment: &'a Environment,
        config: &'a Config,
        version: Version,
    ) -> Result<Option<Self>, CniError> {
        let Some(delegate) = &config.delegate else {
            return Ok(None);
        };
        if environment.is_delegated {
            return Err(CniError::new(
                code::INVALID_CONFIG,
                "the primary CNI calls ambit-cni, which would call it again",
                "a plugin that takes its configuration from the same directory, as Multus does, needs \
                 ambit-agent with --cni-mode chained",
            ));
        }
        Ok(Some(Self {
            environment,
            config,
            delegate,
            version,
        }))
    }

    /// Carries out ADD: calls every plugin in order, each with the result of the previous one, and returns the last
    /// result.
    pub(crate) fn add(&self) -> Result<Option<Box<RawValue>>, CniError> {
        let attachment = self.current(self.config.agent_wait())?;
        let network = network(&attachment)?;
        let version = self.version_for(&network)?;
        // The record is written first: DEL must be possible even if this ADD fails.
        self.store().save(&attachment).map_err(|error| {
            CniError::new(
                code::IO_FAILURE,
                format!(
                    "cannot remember the pod's network in {}",
                    self.delegate.state_dir.display()
                ),
                error.to_string(),
            )
        })?;
        let mut result = None;
        for plugin in foreign(&network) {
            let printed = self.run(&network, plugin, version, result.as_deref())?;
            let printed = RawValue::from_string(printed).map_err(|error| {
                CniError::new(
                    code::DECODING_FAILURE,
                    format!("the result of the plugin {} cannot be read", plugin.kind),
                    error.to_string(),
                )
            })?;
            result = Some(printed);
        }
        Ok(result)
    }

    /// Carries out DEL: calls every plugin in reverse order. Does nothing without a record of the attachment.
    pub(crate) fn del(&self) -> Result<(), CniError> {
        let store = self.store();
        let Some(attachment) = store.load().or_else(|| self.current(Duration::ZERO).ok()) else {
            return Ok(());
        };
        let network = network(&attachment)?;
        let version = self.version_for(&network)?;
        let previous = self.previous(version)?;
        for plugin in foreign(&network).rev() {
            self.run(&network, plugin, version, previous.as_deref())?;
        }
        store.forget();
        Ok(())
    }

    /// Carries out CHECK: calls every plugin in order.
    pub(crate) fn check(&self) -> Result<(), CniError> {
        let saved = self.store().load();
        let attachment = saved.map_or_else(|| self.current(Duration::ZERO), Ok)?;
        let network = network(&attachment)?;
        let version = self.version_for(&network)?;
        if network.disable_check || version < Version::V0_4 {
            return Ok(());
        }
        let previous = self.previous(version)?;
        for plugin in foreign(&network) {
            self.run(&network, plugin, version, previous.as_deref())?;
        }
        Ok(())
    }

    /// Carries out STATUS: checks whether every plugin could serve an ADD.
    pub(crate) fn status(&self) -> Result<(), CniError> {
        let attachment = self.current(Duration::ZERO)?;
        let network = network(&attachment)?;
        let version = self.version_for(&network)?;
        if version < Version::V1_1 {
            return Ok(());
        }
        for plugin in foreign(&network) {
            self.run(&network, plugin, version, None)?;
        }
        Ok(())
    }

    /// Carries out GC: calls every plugin, even after one has failed, and returns the first error.
    pub(crate) fn gc(&self) -> Result<(), CniError> {
        if let Some(valid) = self.valid_attachments()? {
            collect(&self.delegate.state_dir, &valid);
        }
        let attachment = self.current(Duration::ZERO)?;
        let network = network(&attachment)?;
        let version = self.version_for(&network)?;
        if network.disable_gc || version < Version::V1_1 {
            return Ok(());
        }
        let results: Vec<_> = foreign(&network)
            .map(|plugin| self.run(&network, plugin, version, None))
            .collect();
        results.into_iter().collect::<Result<Vec<_>, _>>().map(drop)
    }

    /// Returns the primary CNI's current configuration. Waits at most `wait` while it is missing or being written.
    fn current(&self, wait: Duration) -> Result<Attachment, CniError> {
        let started = Instant::now();
        let net_dir = &self.delegate.net_dir;
        loop {
            let files = directory::read(net_dir).map_err(|error| {
                CniError::new(
                    code::IO_FAILURE,
                    format!("cannot read {}", net_dir.display()),
                    error.to_string(),
                )
            })?;
            let (missing, wait) = match directory::primary(&files, self.delegate.primary.as_deref())
            {
                Primary::Found(file, _) => {
                    return Ok(Attachment {
                        file: file.name.clone(),
                        text: file.text.clone().unwrap_or_default(),
                    });
                }
                Primary::Settling(file, error) => {
                    let settles = directory::SETTLES_WITHIN.max(wait);
                    (format!("{} is being written: {error}", file.name), settles)
                }
                Primary::Unreadable(file, error) => {
                    (format!("{} cannot be read: {error}", file.name), wait)
                }
                Primary::None => ("there is none".to_owned(), wait),
            };
            if started.elapsed() + POLL_INTERVAL > wait {
                return Err(CniError::new(
                    code::NOT_AVAILABLE,
                    format!(
                        "no network configuration of the primary CNI in {}",
                        net_dir.display()
                    ),
                    format!("{missing}; is the primary CNI running on this node?"),
                ));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn store(&self) -> Store {
        let Environment {
            container_id,
            interface,
            ..
        } = self.environment;
        Store::new(&self.delegate.state_dir, container_id, interface)
    }

    fn version_for(&self, network: &Network) -> Result<Version, CniError> {
        let unversioned = network.cni_version.is_none() && network.cni_versions.is_empty();
        let version = if unversioned {
            Some(UNVERSIONED)
        } else {
            network.version(self.version.as_str(), &VERSIONS)
        };
        Version::parse(
            version
                .or(network.cni_version.as_deref())
                .unwrap_or_default(),
        )
    }

    /// Returns the runtime's `prevResult` in this version, for the primary's plugins.
    fn previous(&self, version: Version) -> Result<Option<Box<RawValue>>, CniError> {
        let Some(previous) = &self.config.prev_result else {
            return Ok(None);
        };
        if version < Version::V0_4 || previous.get() == "null" {
            return Ok(None);
        }
        let text = result::passed_on(Some(previous), version)?;
        RawValue::from_string(text).map(Some).map_err(unwritable)
    }

    fn run(
        &self,
        network: &Network,
        plugin: &Plugin,
        version: Version,
        previous: Option<&RawValue>,
    ) -> Result<String, CniError> {
        let mut members = vec![
            ("cniVersion", json::raw(version.as_str())),
            ("name", json::raw(&network.name)),
        ];
        if let Some(arguments) = self.runtime_config(plugin)? {
            members.push(("runtimeConfig", Ok(arguments)));
        }
        if let Some(previous) = previous {
            members.push(("prevResult", Ok(previous.to_owned())));
        }
        if let Some(valid) = &self.config.valid_attachments {
            members.push(("cni.dev/valid-attachments", Ok(valid.clone())));
            members.push(("cni.dev/attachments", Ok(valid.clone())));
        }
        let members = members
            .into_iter()
            .map(|(name, value)| value.map(|value| (name, value)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(unwritable)?;
        let config = plugin.with(&members).map_err(unwritable)?;
        exec::run(self.environment, &plugin.kind, &config)
    }

    /// Returns the runtime's arguments (`runtimeConfig`) for the capabilities that the plugin declares.
    fn runtime_config(&self, plugin: &Plugin) -> Result<Option<Box<RawValue>>, CniError> {
        let Some(arguments) = &self.config.runtime_config else {
            return Ok(None);
        };
        let arguments = Object::parse(arguments.get()).map_err(unwritable)?;
        let overrides: Vec<_> = arguments
            .0
            .iter()
            .filter(|(name, _)| plugin.capabilities.contains(name))
            .map(|(name, value)| (name.as_str(), (*value).to_owned()))
            .collect();
        if overrides.is_empty() {
            return Ok(None);
        }
        let text = json::with_members("{}", &overrides).map_err(unwritable)?;
        RawValue::from_string(text).map(Some).map_err(unwritable)
    }

    fn valid_attachments(&self) -> Result<Option<Vec<(String, String)>>, CniError> {
        #[derive(Deserialize)]
        struct Valid {
            #[serde(rename = "containerID")]
            container_id: String,
            ifname: String,
        }
        let Some(raw) = &self.config.valid_attachments else {
            return Ok(None);
        };
        let valid: Option<Vec<Valid>> = serde_json::from_str(raw.get()).map_err(unwritable)?;
        let pairs = valid.into_iter().flatten();
        Ok(Some(
            pairs
                .map(|valid| (valid.container_id, valid.ifname))
                .collect(),
        ))
    }
}

/// Returns the network's plugins without Ambit's, whose entry an agent in chained mode may have added.
fn foreign(network: &Network) -> impl DoubleEndedIterator<Item = &Plugin> {
    network.plugins.iter().filter(|plugin| !plugin.is_ours())
}

fn network(attachment: &Attachment) -> Result<Network, CniError> {
    attachment.network().map_err(|error| {
        CniError::new(
            code::INVALID_CONFIG,
            format!(
                "the network configuration {} cannot be used",
                attachment.file
            ),
            error.to_string(),
        )
    })
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unwritable(error: serde_json::Error) -> CniError {
    CniError::new(
        code::DECODING_FAILURE,
        "the runtime's configuration cannot be read",
        error.to_string(),
    )
}
