//! Host functions for maps of headers, pseudo-headers and trailers.

use http::{HeaderMap, HeaderName, HeaderValue};
use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{GuestMemory, HostError, to_status_code},
};
use crate::{
    abi::{ENV_MODULE, MapKind, Status, read_pairs, write_pairs},
    limits::MAX_HEADER_BYTES,
    stream::HeaderSection,
};

/// Maximum entries of one header map.
const MAX_HEADER_LINES: usize = 512;

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_header_map_size",
        |caller: Caller<'_, Host>, map: u32, at: u32| {
            to_status_code(get_map_size(GuestMemory::new(caller), map, at))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_header_map_pairs",
        |caller: Caller<'_, Host>, map: u32, at: u32, length_at: u32| {
            to_status_code(get_pairs(GuestMemory::new(caller), map, at, length_at))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_set_header_map_pairs",
        |caller: Caller<'_, Host>, map: u32, at: u32, length: u32| {
            to_status_code(set_pairs(GuestMemory::new(caller), map, at, length))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_header_map_value",
        |caller: Caller<'_, Host>,
         map: u32,
         name: u32,
         name_length: u32,
         at: u32,
         length_at: u32| {
            to_status_code(get_value(
                GuestMemory::new(caller),
                map,
                (name, name_length),
                (at, length_at),
            ))
        },
    )?;
    for (function, how) in [
        ("proxy_add_header_map_value", HeaderChange::Add),
        ("proxy_replace_header_map_value", HeaderChange::Replace),
    ] {
        linker.func_wrap(
            ENV_MODULE,
            function,
            move |caller: Caller<'_, Host>,
                  map: u32,
                  name: u32,
                  name_length: u32,
                  at: u32,
                  length: u32| {
                to_status_code(set_value(
                    GuestMemory::new(caller),
                    how,
                    map,
                    (name, name_length),
                    (at, length),
                ))
            },
        )?;
    }
    linker.func_wrap(
        ENV_MODULE,
        "proxy_remove_header_map_value",
        |caller: Caller<'_, Host>, map: u32, name: u32, length: u32| {
            to_status_code(remove_value(GuestMemory::new(caller), map, name, length))
        },
    )?;
    Ok(())
}

#[derive(Clone, Copy)]
enum HeaderChange {
    Add,
    Replace,
}

/// Header map that a host function operates on: of a request context, or of a received call response.
enum HeaderMapRef<'a> {
    Head(&'a mut HeaderSection),
    Trailers(&'a mut HeaderMap),
}

impl HeaderMapRef<'_> {
    fn for_kind(host: &mut Host, kind: MapKind) -> Result<HeaderMapRef<'_>, Status> {
        Ok(match kind {
            MapKind::RequestHeaders => {
                HeaderMapRef::Head(&mut host.effective_stream()?.request_head)
            }
            MapKind::ResponseHeaders => {
                HeaderMapRef::Head(&mut host.effective_stream()?.response_head)
            }
            MapKind::RequestTrailers => {
                HeaderMapRef::Trailers(&mut host.effective_stream()?.request_trailers)
            }
            MapKind::ResponseTrailers => {
                HeaderMapRef::Trailers(&mut host.effective_stream()?.response_trailers)
            }
            MapKind::CallHeaders => HeaderMapRef::Head(&mut host.callback_data.headers),
            MapKind::CallTrailers => HeaderMapRef::Trailers(&mut host.callback_data.trailers),
            MapKind::GrpcInitialMetadata => {
                HeaderMapRef::Trailers(&mut host.callback_data.grpc_initial_metadata)
            }
            MapKind::GrpcTrailingMetadata => {
                HeaderMapRef::Trailers(&mut host.callback_data.grpc_trailing_metadata)
            }
        })
    }

    fn headers(&mut self) -> &mut HeaderMap {
        match self {
            Self::Head(head) => &mut head.headers,
            Self::Trailers(headers) => headers,
        }
    }

    fn pairs(&self) -> Vec<(&[u8], &[u8])> {
        let (pseudo, headers) = match self {
            Self::Head(head) => (&head.pseudo_headers[..], &head.headers),
            Self::Trailers(headers) => (&[][..], &**headers),
        };
        let pseudo = pseudo
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let headers = headers
            .iter()
            .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        pseudo.chain(headers).collect()
    }

    /// Returns all values of a header, joined as Envoy joins them.
    fn value(&self, name: &[u8]) -> Option<Vec<u8>> {
        let headers = match self {
            Self::Head(head) => {
                let text = str::from_utf8(name).ok();
                if let Some(value) = text.and_then(|name| head.pseudo_header(name)) {
                    return Some(value.as_bytes().to_vec());
                }
                &head.headers
            }
            Self::Trailers(headers) => &**headers,
        };
        let name = HeaderName::from_bytes(name).ok()?;
        let mut all = headers.get_all(name).iter();
        let mut value = all.next()?.as_bytes().to_vec();
        for more in all {
            value.push(b',');
            value.extend_from_slice(more.as_bytes());
        }
        Some(value)
    }

    /// Returns the total length of all names and values in bytes.
    fn total_bytes(&self) -> usize {
        let all = self.pairs().into_iter();
        all.map(|(name, value)| name.len() + value.len()).sum()
    }

    fn set(&mut self, how: HeaderChange, name: &[u8], value: &[u8]) -> Result<(), Status> {
        let room = MAX_HEADER_BYTES.saturating_sub(self.total_bytes());
        if name.len() + value.len() > room {
            return Err(Status::BadArgument);
        }
        if name.starts_with(b":") {
            if let Self::Head(head) = self {
                let name = str::from_utf8(name).map_err(|_| Status::BadArgument)?;
                let value = str::from_utf8(value).map_err(|_| Status::BadArgument)?;
                head.set_pseudo_header(name, value.to_owned());
            }
            return Ok(());
        }
        let name = HeaderName::from_bytes(name).map_err(|_| Status::BadArgument)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| Status::BadArgument)?;
        let headers = self.headers();
        if headers.len() >= MAX_HEADER_LINES && !headers.contains_key(&name) {
            return Err(Status::BadArgument);
        }
        let set = match how {
            HeaderChange::Replace => headers.try_insert(name, value).map(drop),
            HeaderChange::Add if headers.len() >= MAX_HEADER_LINES => {
                return Err(Status::BadArgument);
            }
            HeaderChange::Add => headers.try_append(name, value).map(drop),
        };
        set.map_err(|_| Status::BadArgument)
    }
}

fn get_map_size(mut guest: GuestMemory<'_>, map: u32, at: u32) -> Result<(), HostError> {
    let map = HeaderMapRef::for_kind(guest.host(), MapKind::from_number(map)?)?;
    let size = map.total_bytes();
    guest.write_u32(at, u32::try_from(size).unwrap_or(u32::MAX))
}

fn get_pairs(
    mut guest: GuestMemory<'_>,
    map: u32,
    at: u32,
    length_at: u32,
) -> Result<(), HostError> {
    let map = HeaderMapRef::for_kind(guest.host(), MapKind::from_number(map)?)?;
    let bytes = write_pairs(map.pairs().into_iter());
    guest.write_allocated(&bytes, at, length_at)
}

fn set_pairs(mut guest: GuestMemory<'_>, map: u32, at: u32, length: u32) -> Result<(), HostError> {
    let kind = MapKind::from_number(map)?;
    let (bytes, host) = guest.read_with_host(at, length)?;
    let pairs = read_pairs(bytes).ok_or(Status::ParseFailure)?;
    let mut map = HeaderMapRef::for_kind(host, kind)?;
    // An invalid pair leaves the map unchanged.
    let mut made = HeaderSection::default();
    let mut new = match &map {
        HeaderMapRef::Head(_) => HeaderMapRef::Head(&mut made),
        HeaderMapRef::Trailers(_) => HeaderMapRef::Trailers(&mut made.headers),
    };
    for (name, value) in pairs {
        new.set(HeaderChange::Add, name, value)?;
    }
    match &mut map {
        HeaderMapRef::Head(head) => {
            // Missing pseudo-headers are kept: there is no request without them.
            for (name, value) in std::mem::take(&mut head.pseudo_headers) {
                if made.pseudo_header(name).is_none() {
                    made.set_pseudo_header(name, value);
                }
            }
            **head = made;
        }
        HeaderMapRef::Trailers(trailers) => **trailers = made.headers,
    }
    Ok(())
}

fn get_value(
    mut guest: GuestMemory<'_>,
    map: u32,
    (name, length): (u32, u32),
    (at, length_at): (u32, u32),
) -> Result<(), HostError> {
    let kind = MapKind::from_number(map)?;
    let (name, host) = guest.read_with_host(name, length)?;
    let value = HeaderMapRef::for_kind(host, kind)?.value(name);
    let Some(value) = value else {
        guest.write_allocated(&[], at, length_at)?;
        return Err(Status::NotFound.into());
    };
    guest.write_allocated(&value, at, length_at)
}

fn set_value(
    mut guest: GuestMemory<'_>,
    how: HeaderChange,
    map: u32,
    name: (u32, u32),
    value: (u32, u32),
) -> Result<(), HostError> {
    let kind = MapKind::from_number(map)?;
    let (name, value, host) = guest.read_two_with_host(name, value)?;
    Ok(HeaderMapRef::for_kind(host, kind)?.set(how, name, value)?)
}

fn remove_value(
    mut guest: GuestMemory<'_>,
    map: u32,
    name: u32,
    length: u32,
) -> Result<(), HostError> {
    let kind = MapKind::from_number(map)?;
    let (name, host) = guest.read_with_host(name, length)?;
    let mut map = HeaderMapRef::for_kind(host, kind)?;
    // Pseudo-headers are not removed: there is no request without them.
    if let Ok(name) = HeaderName::from_bytes(name) {
        map.headers().remove(name);
    }
    Ok(())
}
