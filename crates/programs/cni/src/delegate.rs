//! Owned mode: calls the plugins of the primary CNI's configuration, as a container runtime does.
//!
//! The configuration is read at each call, so that the next pod gets the current one. For one pod,
//! the configuration of its ADD stays in force until DEL.

use std::{
    thread,
    time::{Duration, Instant},
};

use ambit_cni_conf::{
    Network, Plugin, PrimaryConf, directory,
    json::{self, Object},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    attachment::{Attachment, AttachmentStore, collect_garbage},
    config::{CniVersion, Config, Delegate, UNVERSIONED, VERSIONS},
    environment::Environment,
    error::{CniError, code},
    exec, result,
};

/// Interval of checks while the primary CNI's configuration is missing.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Delegation of one CNI command to the primary CNI's plugins.
#[derive(Debug)]
pub(crate) struct DelegateCall<'a> {
    environment: &'a Environment,
    config: &'a Config,
    delegate: &'a Delegate,
    /// CNI version that the runtime uses.
    version: CniVersion,
}

impl<'a> DelegateCall<'a> {
    /// Creates the delegation of a command; `None` in chained mode, where the runtime calls the primary's plugins
    /// itself.
    ///
    /// # Errors
    ///
    /// When this plugin is called by a plugin that it has called itself.
    pub(crate) fn new(
        environment: &'a Environment,
        config: &'a Config,
        version: CniVersion,
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

    /// Carries out ADD: calls every plugin of the primary CNI in order, each with the result of the previous one, and
    /// returns the last result.
    pub(crate) fn add(&self) -> Result<Option<Box<RawValue>>, CniError> {
        let attachment = self.current_attachment(self.config.agent_wait())?;
        let network = parse_network(&attachment)?;
        let version = self.version_for(&network)?;
        // The record is written first: DEL must be possible even if this ADD fails.
        self.attachment_store().save(&attachment).map_err(|error| {
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
        for plugin in foreign_plugins(&network) {
            let printed = self.run_plugin(&network, plugin, version, result.as_deref())?;
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

    /// Carries out DEL: calls every plugin of the primary CNI in reverse order. Does nothing without a record of the
    /// attachment.
    pub(crate) fn del(&self) -> Result<(), CniError> {
        let store = self.attachment_store();
        let Some(attachment) = store
            .load()
            .or_else(|| self.current_attachment(Duration::ZERO).ok())
        else {
            return Ok(());
        };
        let network = parse_network(&attachment)?;
        let version = self.version_for(&network)?;
        let previous = self.previous_result(version)?;
        for plugin in foreign_plugins(&network).rev() {
            self.run_plugin(&network, plugin, version, previous.as_deref())?;
        }
        store.delete();
        Ok(())
    }

    /// Carries out CHECK: calls every plugin of the primary CNI in order.
    pub(crate) fn check(&self) -> Result<(), CniError> {
        let saved = self.attachment_store().load();
        let attachment = saved.map_or_else(|| self.current_attachment(Duration::ZERO), Ok)?;
        let network = parse_network(&attachment)?;
        let version = self.version_for(&network)?;
        if network.disable_check || version < CniVersion::V0_4 {
            return Ok(());
        }
        let previous = self.previous_result(version)?;
        for plugin in foreign_plugins(&network) {
            self.run_plugin(&network, plugin, version, previous.as_deref())?;
        }
        Ok(())
    }

    /// Carries out STATUS: checks whether every plugin of the primary CNI could serve an ADD.
    pub(crate) fn status(&self) -> Result<(), CniError> {
        let attachment = self.current_attachment(Duration::ZERO)?;
        let network = parse_network(&attachment)?;
        let version = self.version_for(&network)?;
        if version < CniVersion::V1_1 {
            return Ok(());
        }
        for plugin in foreign_plugins(&network) {
            self.run_plugin(&network, plugin, version, None)?;
        }
        Ok(())
    }

    /// Carries out GC: calls every plugin of the primary CNI, even after one has failed, and returns the first error.
    pub(crate) fn gc(&self) -> Result<(), CniError> {
        if let Some(valid) = self.valid_attachments()? {
            collect_garbage(&self.delegate.state_dir, &valid);
        }
        let attachment = self.current_attachment(Duration::ZERO)?;
        let network = parse_network(&attachment)?;
        let version = self.version_for(&network)?;
        if network.disable_gc || version < CniVersion::V1_1 {
            return Ok(());
        }
        let results: Vec<_> = foreign_plugins(&network)
            .map(|plugin| self.run_plugin(&network, plugin, version, None))
            .collect();
        results.into_iter().collect::<Result<Vec<_>, _>>().map(drop)
    }

    /// Returns the primary CNI's current configuration. Waits at most `wait` while it is missing or being written.
    fn current_attachment(&self, wait: Duration) -> Result<Attachment, CniError> {
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
            let (missing, wait) =
                match directory::find_primary_conf(&files, self.delegate.primary.as_deref()) {
                    PrimaryConf::Valid(file, _) => {
                        return Ok(Attachment {
                            file: file.name.clone(),
                            text: file.text.clone().unwrap_or_default(),
                        });
                    }
                    PrimaryConf::Settling(file, error) => {
                        let settles = directory::FILE_SETTLE_TIME.max(wait);
                        (format!("{} is being written: {error}", file.name), settles)
                    }
                    PrimaryConf::Unreadable(file, error) => {
                        (format!("{} cannot be read: {error}", file.name), wait)
                    }
                    PrimaryConf::None => ("there is none".to_owned(), wait),
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

    fn attachment_store(&self) -> AttachmentStore {
        let Environment {
            container_id,
            interface,
            ..
        } = self.environment;
        AttachmentStore::new(&self.delegate.state_dir, container_id, interface)
    }

    fn version_for(&self, network: &Network) -> Result<CniVersion, CniError> {
        let unversioned = network.cni_version.is_none() && network.cni_versions.is_empty();
        let version = if unversioned {
            Some(UNVERSIONED)
        } else {
            network.select_version(self.version.as_str(), &VERSIONS)
        };
        CniVersion::parse(
            version
                .or(network.cni_version.as_deref())
                .unwrap_or_default(),
        )
    }

    /// Returns the runtime's `prevResult` in the format of `version`, for the primary's plugins.
    fn previous_result(&self, version: CniVersion) -> Result<Option<Box<RawValue>>, CniError> {
        let Some(previous) = &self.config.prev_result else {
            return Ok(None);
        };
        if version < CniVersion::V0_4 || previous.get() == "null" {
            return Ok(None);
        }
        let text = result::output_result(Some(previous), version)?;
        RawValue::from_string(text)
            .map(Some)
            .map_err(serialization_error)
    }

    fn run_plugin(
        &self,
        network: &Network,
        plugin: &Plugin,
        version: CniVersion,
        previous: Option<&RawValue>,
    ) -> Result<String, CniError> {
        let mut members = vec![
            ("cniVersion", json::serialize_raw(version.as_str())),
            ("name", json::serialize_raw(&network.name)),
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
            .map_err(serialization_error)?;
        let config = plugin
            .config_with_members(&members)
            .map_err(serialization_error)?;
        exec::run(self.environment, &plugin.kind, &config)
    }

    /// Returns the runtime's arguments (`runtimeConfig`) for the capabilities that the plugin declares.
    fn runtime_config(&self, plugin: &Plugin) -> Result<Option<Box<RawValue>>, CniError> {
        let Some(arguments) = &self.config.runtime_config else {
            return Ok(None);
        };
        let arguments = Object::parse(arguments.get()).map_err(serialization_error)?;
        let overrides: Vec<_> = arguments
            .0
            .iter()
            .filter(|(name, _)| plugin.capabilities.contains(name))
            .map(|(name, value)| (name.as_str(), (*value).to_owned()))
            .collect();
        if overrides.is_empty() {
            return Ok(None);
        }
        let text = json::with_members("{}", &overrides).map_err(serialization_error)?;
        RawValue::from_string(text)
            .map(Some)
            .map_err(serialization_error)
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
        let valid: Option<Vec<Valid>> =
            serde_json::from_str(raw.get()).map_err(serialization_error)?;
        let pairs = valid.into_iter().flatten();
        Ok(Some(
            pairs
                .map(|valid| (valid.container_id, valid.ifname))
                .collect(),
        ))
    }
}

/// Returns the network's plugins without Ambit's, whose entry an agent in chained mode may have added.
fn foreign_plugins(network: &Network) -> impl DoubleEndedIterator<Item = &Plugin> {
    network.plugins.iter().filter(|plugin| !plugin.is_ours())
}

fn parse_network(attachment: &Attachment) -> Result<Network, CniError> {
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
fn serialization_error(error: serde_json::Error) -> CniError {
    CniError::new(
        code::DECODING_FAILURE,
        "the runtime's configuration cannot be read",
        error.to_string(),
    )
}
