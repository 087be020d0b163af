//! Host functions for properties of a request, by Envoy's attribute names. Headers, the plugin's own name and
//! properties that a module has set are resolved here; the waypoint resolves all others ([`crate::PropertySource`]).

use bytes::Bytes;
use http::HeaderMap;
use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{GuestMemory, HostError, to_status_code},
};
use crate::{
    abi::{ENV_MODULE, Status, write_pairs},
    limits::{MAX_PROPERTIES, MAX_PROPERTY_BYTES},
    stream::{HeaderSection, PropertyValue},
};

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_property",
        |caller: Caller<'_, Host>, path: u32, length: u32, at: u32, length_at: u32| {
            to_status_code(get_property(
                GuestMemory::new(caller),
                (path, length),
                (at, length_at),
            ))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_set_property",
        |caller: Caller<'_, Host>, path: u32, path_length: u32, at: u32, length: u32| {
            to_status_code(set_property(
                GuestMemory::new(caller),
                (path, path_length),
                (at, length),
            ))
        },
    )?;
    Ok(())
}

/// Splits a property's path at its zero bytes; some SDKs add one at the end, too.
fn split_path(path: &[u8]) -> Result<Vec<&str>, Status> {
    let path = path.strip_suffix(&[0]).unwrap_or(path);
    let parts = path.split(|byte| *byte == 0).map(str::from_utf8);
    parts
        .collect::<Result<_, _>>()
        .map_err(|_| Status::BadArgument)
}

fn get_property(
    mut guest: GuestMemory<'_>,
    (path, length): (u32, u32),
    (at, length_at): (u32, u32),
) -> Result<(), HostError> {
    let (path, host) = guest.read_with_host(path, length)?;
    let found = find_property(host, path)?;
    let bytes = found.ok_or(Status::NotFound)?;
    guest.write_allocated(&bytes, at, length_at)
}

fn set_property(
    mut guest: GuestMemory<'_>,
    path: (u32, u32),
    value: (u32, u32),
) -> Result<(), HostError> {
    let (path, value, host) = guest.read_two_with_host(path, value)?;
    let stream = host.effective_stream().map_err(|_| Status::NotFound)?;
    let path = path.strip_suffix(&[0]).unwrap_or(path);
    if stream.properties.len() >= MAX_PROPERTIES && !stream.properties.contains_key(path) {
        return Err(Status::InternalFailure.into());
    }
    let others = stream.properties.iter().filter(|(known, _)| *known != path);
    let others: usize = others.map(|(path, value)| path.len() + value.len()).sum();
    if others + path.len() + value.len() > MAX_PROPERTY_BYTES {
        return Err(Status::InternalFailure.into());
    }
    stream
        .properties
        .insert(path.to_vec(), Bytes::copy_from_slice(value));
    Ok(())
}

fn find_property(host: &Host, path: &[u8]) -> Result<Option<Vec<u8>>, Status> {
    let parts = split_path(path)?;
    let settings = &host.settings;
    let text = |text: &str| Some(text.as_bytes().to_vec());
    match parts[..] {
        ["plugin_name"] => return Ok(text(&settings.name)),
        ["plugin_root_id"] => return Ok(text(&settings.root_id)),
        ["plugin_vm_id"] => return Ok(text(&settings.vm_id)),
        _ => {}
    }
    let Some(stream) = host.streams.get(&host.effective_context) else {
        return Ok(None);
    };
    let own = path.strip_suffix(&[0]).unwrap_or(path);
    if let Some(set) = stream.properties.get(own) {
        return Ok(Some(set.to_vec()));
    }
    let found = match parts[..] {
        ["request", name] => request_property(&stream.request_head, name),
        ["request", "headers", name] => header_property(&stream.request_head.headers, name),
        ["response", "code"] => {
            let code = stream
                .response_head
                .pseudo_header(":status")
                .and_then(|code| code.parse().ok());
            code.map(PropertyValue::Number)
        }
        ["response", "headers"] => Some(headers_property(&stream.response_head.headers)),
        ["response", "headers", name] => header_property(&stream.response_head.headers, name),
        ["response", "trailers"] => Some(headers_property(&stream.response_trailers)),
        ["response", "trailers", name] => header_property(&stream.response_trailers, name),
        _ => None,
    };
    let found = found.or_else(|| stream.property_source.property(&parts));
    Ok(found.map(|value| match value {
        PropertyValue::Text(text) => text.into_bytes(),
        PropertyValue::Number(number) => number.to_le_bytes().to_vec(),
        PropertyValue::Bool(truth) => vec![truth.into()],
        PropertyValue::Pairs(pairs) => {
            let pairs = pairs.iter();
            write_pairs(pairs.map(|(name, value)| (name.as_bytes(), value.as_bytes())))
        }
    }))
}

fn request_property(request: &HeaderSection, name: &str) -> Option<PropertyValue> {
    let pseudo = |name: &str| {
        request
            .pseudo_header(name)
            .map(|value| PropertyValue::Text(value.to_owned()))
    };
    let named = |name: &str| header_property(&request.headers, name);
    match name {
        "path" => pseudo(":path"),
        "url_path" => {
            let path = request.pseudo_header(":path")?.split('?').next()?;
            Some(PropertyValue::Text(path.to_owned()))
        }
        "query" => {
            let (_, query) = request.pseudo_header(":path")?.split_once('?')?;
            Some(PropertyValue::Text(query.to_owned()))
        }
        "host" => pseudo(":authority"),
        "method" => pseudo(":method"),
        "scheme" => pseudo(":scheme"),
        "headers" => Some(headers_property(&request.headers)),
        "referer" => named("referer"),
        "useragent" => named("user-agent"),
        "id" => named("x-request-id"),
        _ => None,
    }
}

fn header_property(headers: &HeaderMap, name: &str) -> Option<PropertyValue> {
    let value = headers.get(name)?;
    Some(PropertyValue::Text(
        String::from_utf8_lossy(value.as_bytes()).into_owned(),
    ))
}

fn headers_property(headers: &HeaderMap) -> PropertyValue {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let pairs = headers
        .iter()
        .map(|(name, value)| (name.to_string(), text(value)));
    PropertyValue::Pairs(pairs.collect())
}
