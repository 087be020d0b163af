//! Parsing of Secrets with registry credentials for the images of Wasm plugins: only Secrets with the label for it, and
//! only if the control plane is configured to read Secrets. Their content appears in no log and no message.

use std::{fmt, sync::Arc};

use ambit_k8s_api::{
    Secret, labels,
    secret::{DOCKER_CONFIG_KEY, DOCKER_CONFIG_TYPE},
};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable},
    problem::FieldError,
};

/// Maximum length of the credentials of one Secret, in bytes.
const MAX_BYTES: usize = 64 << 10;

impl FetchedKind for Secret {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole {
        labels: Some(labels::IMAGE_PULL_SELECTOR),
    };

    fn without_unused_fields(mut self) -> Self {
        self.data.retain(|key, _| key == DOCKER_CONFIG_KEY);
        self.string_data.retain(|key, _| key == DOCKER_CONFIG_KEY);
        self
    }
}

/// Registry credentials of a Secret (`.dockerconfigjson`), for pulling images.
#[derive(Clone, PartialEq)]
pub(crate) struct Credentials(pub(crate) Arc<[u8]>);

/// Hides the credentials in debug output.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Readable for Secret {
    type Input = Credentials;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<Credentials>, FieldError> {
        let labels = self.metadata.labels.as_ref();
        let is_labelled = labels.is_some_and(|labels| {
            labels
                .get(labels::IMAGE_PULL)
                .is_some_and(|value| value == "true")
        });
        if !config.image_pull_secrets || !is_labelled {
            return Ok(Parsed::new(None, Vec::new()));
        }
        if self.secret_type != DOCKER_CONFIG_TYPE {
            let message = format!("{:?} is not {DOCKER_CONFIG_TYPE}", self.secret_type);
            return Err(FieldError::new("type", message));
        }
        let error = |message: &str| FieldError::new(format!("data[{DOCKER_CONFIG_KEY}]"), message);
        let bytes = self
            .get(DOCKER_CONFIG_KEY)
            .ok_or_else(|| error("is not there"))?;
        if bytes.len() > MAX_BYTES {
            return Err(error("is larger than 64 KiB"));
        }
        // A parser's error could contain a part of it.
        let read: Option<Value> = serde_json::from_slice(bytes).ok();
        if !read.is_some_and(|read| read.get("auths").is_some_and(Value::is_object)) {
            return Err(error("is no JSON object with auths"));
        }
        Ok(Parsed::without_notes(Credentials(bytes.into())))
    }
}
