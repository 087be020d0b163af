//! Host functions for maps of headers, pseudo-headers and trailers.

use http::{HeaderMap, HeaderName, HeaderValue};
use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{Guest, HostError, answer},
};
use crate::{
    abi::{ENV, MapKind, Status, read_pairs, write_pairs},
    limits::MAX_HEADER_BYTES,
    stream::Head,
};

/// Maximum entries of one header map.
const MAX_HEADERS: usize = 512;

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_get_header_map_size",
        |caller: Caller<'_, Host>, map: u32, at: u32| answer(size(Guest::new(caller), map, at)),
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_header_map_pairs",
        |caller: Caller<'_, Host>, map: u32, at: u32, length_at: u32| {
            answer(pairs(Guest::new(caller), map, at, length_at))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_set_header_map_pairs",
        |caller: Caller<'_, Host>, map: u32, at: u32, length: u32| {
            answer(set_pairs(Guest::new(caller), map, at, length))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_header_map_value",
        |caller: Caller<'_, Host>,
         map: u32,
         name: u32,
         name_length: u32,
         at: u32,
         length_at: u32| {
            answer(value(
                Guest::new(caller),
                map,
                (name, name_length),
                (at, length_at),
            ))
        },
    )?;
    for (function, how) in [
        ("proxy_add_header_map_value", How::Add),
        ("proxy_replace_header_map_value", How::Replace),
    ] {
        linker.func_wrap(
            ENV,
            function,
            move |caller: Caller<'_, Host>,
                  map: u32,
                  name: u32,
                  name_length: u32,
                  at: u32,
                  length: u32| {
                answer(set(
                    Guest::new(caller),
                    how,
                    map,
                    (name, name_length),
                    (at, length),
                ))
            },
        )?;
    }
    linker.func_wrap(
        ENV,
        "proxy_remove_header_map_value",
        |caller: Caller<'_, Host>, map: u32, name: u32, length: u32| {
            answer(remove(Guest::new(caller), map, name, length))
        },
    )?;
    Ok(())
}

#[derive(Clone, Copy)]
enum How {
    Add,
    Replace,
}

/// Header map of a stream or of a received response.
enum Map<'a> {
    Head(&'a mut Head),
    Trailers(&'a mut HeaderMap),
}

impl Map<'_> {
    fn of(host: &mut Host, kind: MapKind) -> Result<Map<'_>, Status> {
        Ok(match kind {
            MapKind::RequestHeaders => Map::Head(&mut host.stream()?.request),
            MapKind::ResponseHeaders => Map::Head(&mut host.stream()?.response),
            MapKind::RequestTrailers => Map::Trailers(&mut host.stream()?.request_trailers),
            MapKind::ResponseTrailers => Map::Trailers(&mut host.stream()?.response_trailers),
            MapKind::CallHeaders => Map::Head(&mut host.received.headers),
            MapKind::CallTrailers => Map::Trailers(&mut host.received.trailers),
            MapKind::GrpcInitialMetadata => Map::Trailers(&mut host.received.grpc_initial),
            MapKind::GrpcTrailingMetadata => Map::Trailers(&mut host.received.grpc_trailing),
        })
    }

    fn headers(&mut self) -> &mut HeaderMap {
        match self {
            Self::Head(head) => &mut head.headers,
            Self::Trailers(headers) => headers,
        }
    }

    fn all(&self) -> Vec<(&[u8], &[u8])> {
        let (pseudo, headers) = match self {
            Self::Head(head) => (&head.pseudo[..], &head.headers),
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

    /// Returns all values of a name, joined as Envoy does.
    fn value(&self, name: &[u8]) -> Option<Vec<u8>> {
        let headers = match self {
            Self::Head(head) => {
                let text = str::from_utf8(name).ok();
                if let Some(value) = text.and_then(|name| head.pseudo(name)) {
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
    fn bytes(&self) -> usize {
        let all = self.all().into_iter();
        all.map(|(name, value)| name.len() + value.len()).sum()
    }

    fn set(&mut self, how: How, name: &[u8], value: &[u8]) -> Result<(), Status> {
        let room = MAX_HEADER_BYTES.saturating_sub(self.bytes());
        if name.len() + value.len() > room {
            return Err(Status::BadArgument);
        }
        if name.starts_with(b":") {
            if let Self::Head(head) = self {
                let name = str::from_utf8(name).map_err(|_| Status::BadArgument)?;
                let value = str::from_utf8(value).map_err(|_| Status::BadArgument)?;
                head.set_pseudo(name, value.to_owned());
            }
            return Ok(());
        }
        let name = HeaderName::from_bytes(name).map_err(|_| Status::BadArgument)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| Status::BadArgument)?;
        let headers = self.headers();
        if headers.len() >= MAX_HEADERS && !headers.contains_key(&name) {
            return Err(Status::BadArgument);
        }
        let set = match how {
            How::Replace => headers.try_insert(name, value).map(drop),
            How::Add if headers.len() >= MAX_HEADERS => return Err(Status::BadArgument),
            How::Add => headers.try_append(name, value).map(drop),
        };
        set.map_err(|_| Status::BadArgument)
    }
}

fn size(mut guest: Guest<'_>, map: u32, at: u32) -> Result<(), HostError> {
    let map = Map::of(guest.host(), MapKind::of(map)?)?;
    let size = map.bytes();
    guest.put_number(at, u32::try_from(size).unwrap_or(u32::MAX))
}

fn pairs(mut guest: Guest<'_>, map: u32, at: u32, length_at: u32) -> Result<(), HostError> {
    let map = Map::of(guest.host(), MapKind::of(map)?)?;
    let bytes = write_pairs(map.all().into_iter());
    guest.give(&bytes, at, length_at)
}

fn set_pairs(mut guest: Guest<'_>, map: u32, at: u32, length: u32) -> Result<(), HostError> {
    let kind = MapKind::of(map)?;
    let (bytes, host) = guest.both(at, length)?;
    let pairs = read_pairs(bytes).ok_or(Status::ParseFailure)?;
    let mut map = Map::of(host, kind)?;
    // An invalid pair leaves the map unchanged.
    let mut made = Head::default();
    let mut new = match &map {
        Map::Head(_) => Map::Head(&mut made),
        Map::Trailers(_) => Map::Trailers(&mut made.headers),
    };
    for (name, value) in pairs {
        new.set(How::Add, name, value)?;
    }
    match &mut map {
        Map::Head(head) => {
            // Missing pseudo-headers are kept: there is no request without them.
            for (name, value) in std::mem::take(&mut head.pseudo) {
                if made.pseudo(name).is_none() {
                    made.set_pseudo(name, value);
                }
            }
            **head = made;
        }
        Map::Trailers(trailers) => **trailers = made.headers,
    }
    Ok(())
}

fn value(
    mut guest: Guest<'_>,
    map: u32,
    (name, length): (u32, u32),
    (at, length_at): (u32, u32),
) -> Result<(), HostError> {
    let kind = MapKind::of(map)?;
    let (name, host) = guest.both(name, length)?;
    let value = Map::of(host, kind)?.value(name);
    let Some(value) = value else {
        guest.give(&[], at, length_at)?;
        return Err(Status::NotFound.into());
    };
    guest.give(&value, at, length_at)
}

fn set(
    mut guest: Guest<'_>,
    how: How,
    map: u32,
    name: (u32, u32),
    value: (u32, u32),
) -> Result<(), HostError> {
    let kind = MapKind::of(map)?;
    let (name, value, host) = guest.pair(name, value)?;
    Ok(Map::of(host, kind)?.set(how, name, value)?)
}

fn remove(mut guest: Guest<'_>, map: u32, name: u32, length: u32) -> Result<(), HostError> {
    let kind = MapKind::of(map)?;
    let (name, host) = guest.both(name, length)?;
    let mut map = Map::of(host, kind)?;
    // Pseudo-headers are not removed: there is no request without them.
    if let Ok(name) = HeaderName::from_bytes(name) {
        map.headers().remove(name);
    }
    Ok(())
}
