//! Result of the previous CNI plugins, which is passed on, and parsed for the pod's addresses.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::{
    config::CniVersion,
    error::{CniError, code},
};

/// Address of the pod in the previous plugins' result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodAddress {
    pub(crate) ip: IpAddr,
    pub(crate) prefix_length: u8,
    pub(crate) gateway: String,
    pub(crate) interface: Option<i64>,
}

#[derive(Deserialize)]
struct AddressLists {
    #[serde(default)]
    ips: Option<Vec<ListedAddress>>,
    ip4: Option<LegacyAddress>,
    ip6: Option<LegacyAddress>,
}

#[derive(Deserialize)]
struct ListedAddress {
    address: String,
    #[serde(default)]
    gateway: Option<String>,
    #[serde(default)]
    interface: Option<i64>,
}

/// Address in the CNI result format before version 0.3.0, which has one address of each family.
#[derive(Deserialize)]
struct LegacyAddress {
    ip: String,
    #[serde(default)]
    gateway: Option<String>,
}

fn invalid_result_error(error: impl std::fmt::Display) -> CniError {
    CniError::new(
        code::DECODING_FAILURE,
        "the prevResult of the plugin before cannot be read",
        error.to_string(),
    )
}

/// Parses the pod's addresses from a result of any version.
pub(crate) fn parse_addresses(result: &RawValue) -> Result<Vec<PodAddress>, CniError> {
    let lists: AddressLists = serde_json::from_str(result.get()).map_err(invalid_result_error)?;
    let listed = lists.ips.unwrap_or_default().into_iter();
    let old = [lists.ip4, lists.ip6]
        .into_iter()
        .flatten()
        .map(|old| ListedAddress {
            address: old.ip,
            gateway: old.gateway,
            interface: None,
        });
    listed.chain(old).map(parse_address).collect()
}

fn parse_address(listed: ListedAddress) -> Result<PodAddress, CniError> {
    let bad = || {
        invalid_result_error(format!(
            "{:?} is not an address with a prefix length",
            listed.address
        ))
    };
    let (ip, prefix) = listed.address.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    let prefix: u8 = prefix.parse().map_err(|_| bad())?;
    if prefix > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(bad());
    }
    Ok(PodAddress {
        ip,
        prefix_length: prefix,
        gateway: listed.gateway.unwrap_or_default(),
        interface: listed.interface,
    })
}

/// Returns the result to print after success: `previous` byte for byte if it is of the requested version, converted
/// otherwise, and an empty result if there is none.
pub(crate) fn output_result(
    previous: Option<&RawValue>,
    version: CniVersion,
) -> Result<String, CniError> {
    let Some(previous) = previous.filter(|raw| raw.get() != "null") else {
        return Ok(format!(
            r#"{{"cniVersion":"{}","dns":{{}}}}"#,
            version.as_str()
        ));
    };
    let mut value: Map<String, Value> =
        serde_json::from_str(previous.get()).map_err(invalid_result_error)?;
    let was = match value.get("cniVersion").and_then(Value::as_str) {
        // A result without a version has that of its configuration.
        None | Some("") => version,
        Some(text) if text == version.as_str() => return Ok(previous.get().to_owned()),
        Some(text) => CniVersion::parse(text)?,
    };
    if (was < CniVersion::V0_3) != (version < CniVersion::V0_3) {
        return Err(CniError::new(
            code::INCOMPATIBLE_VERSION,
            format!(
                "a result of version {} cannot be given as {}",
                was.as_str(),
                version.as_str()
            ),
            "the runtime must pass prevResult in the version of the configuration",
        ));
    }
    value.insert("cniVersion".to_owned(), version.as_str().into());
    if (was < CniVersion::V1_0) != (version < CniVersion::V1_0) {
        translate_addresses(&mut value, version);
    }
    serde_json::to_string(&value).map_err(invalid_result_error)
}

/// Adds the address family to each address, for versions before 1.0.0.
fn translate_addresses(result: &mut Map<String, Value>, version: CniVersion) {
    let Some(ips) = result.get_mut("ips").and_then(Value::as_array_mut) else {
        return;
    };
    for ip in ips.iter_mut().filter_map(Value::as_object_mut) {
        if version >= CniVersion::V1_0 {
            ip.remove("version");
        } else {
            let v6 = ip
                .get("address")
                .and_then(Value::as_str)
                .is_some_and(|ip| ip.contains(':'));
            ip.insert("version".to_owned(), if v6 { "6" } else { "4" }.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn version(text: &str) -> CniVersion {
        CniVersion::parse(text).unwrap()
    }

    #[test]
    fn result_in_the_requested_version_is_unchanged() {
        for v in ["0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let text =
                format!("{{ \"z\":1.50, \"cniVersion\": \"{v}\",\n\t\"ips\":[] , \"a\":[1e3]}}");
            assert_eq!(output_result(Some(&raw(&text)), version(v)).unwrap(), text);
        }
    }

    #[test]
    fn result_in_another_version_is_translated() {
        let new = raw(
            r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8"},{"address":"fd::1/64"}],"x":1}"#,
        );
        let old: Value =
            serde_json::from_str(&output_result(Some(&new), version("0.4.0")).unwrap()).unwrap();
        assert_eq!(old["cniVersion"], "0.4.0");
        assert_eq!(old["ips"][0]["version"], "4");
        assert_eq!(old["ips"][1]["version"], "6");
        assert_eq!(old["x"], 1);
        let back = output_result(Some(&raw(&old.to_string())), version("1.1.0")).unwrap();
        let back: Value = serde_json::from_str(&back).unwrap();
        assert_eq!(back["cniVersion"], "1.1.0");
        assert!(back["ips"][0].get("version").is_none());
        assert!(output_result(Some(&new), version("0.2.0")).is_err());
    }

    #[test]
    fn missing_result_becomes_an_empty_one() {
        let empty = r#"{"cniVersion":"0.3.1","dns":{}}"#;
        assert_eq!(output_result(None, version("0.3.1")).unwrap(), empty);
        assert_eq!(
            output_result(Some(&raw("null")), version("0.3.1")).unwrap(),
            empty
        );
    }

    #[test]
    fn addresses_are_parsed_in_every_format() {
        let listed =
            raw(r#"{"ips":[{"address":"10.0.0.5/24","gateway":"10.0.0.1","interface":2}]}"#);
        let expected = PodAddress {
            ip: "10.0.0.5".parse().unwrap(),
            prefix_length: 24,
            gateway: "10.0.0.1".to_owned(),
            interface: Some(2),
        };
        assert_eq!(parse_addresses(&listed).unwrap(), [expected]);
        let old = raw(r#"{"ip4":{"ip":"10.0.0.5/24"},"ip6":{"ip":"fd00::5/64"}}"#);
        assert_eq!(parse_addresses(&old).unwrap().len(), 2);
        assert_eq!(parse_addresses(&raw(r#"{"ips":null}"#)).unwrap(), []);
    }

    #[test]
    fn invalid_addresses_are_errors() {
        for text in [
            r#"{"ips":[{"address":"10.0.0.5"}]}"#,
            r#"{"ips":[{"address":"10.0.0.5/33"}]}"#,
            r#"{"ips":[{"address":"x/1"}]}"#,
            r#"{"ips":[{}]}"#,
            r#"{"ips":3}"#,
            "[]",
            "7",
        ] {
            let error = parse_addresses(&raw(text)).unwrap_err();
            assert_eq!(error.code, code::DECODING_FAILURE, "{text}");
        }
    }
}
