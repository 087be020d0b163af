//! Decodes the kernel's description of a table. Unknown expressions become `Expr::Foreign`, which equals none of
//! Ambit's.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_netplan::{
    Family,
    nft::{CtKey, Expr, Hook, MetaKey, PayloadBase, Set, SetKey, SetMember, TableChain, set_name},
};

use super::encode::{
    ACCEPT, ADDRESS_TYPE, DROP, OF_DESTINATION, REGISTER, SOCKET_CGROUP, SOCKET_MARK, TCP_RESET,
    VERDICT_REGISTER, register_beside,
};
use super::protocol::key_type;
use crate::netlink::{attr, attrs, text, u32_be, u64_be};

/// Key types of the sets that Ambit creates.
const SET_KEYS: [SetKey; 4] = [
    set_key(Family::V4, false),
    set_key(Family::V6, false),
    set_key(Family::V4, true),
    set_key(Family::V6, true),
];

const fn set_key(family: Family, has_port: bool) -> SetKey {
    SetKey { family, has_port }
}

/// Decodes a chain's message: the name and the chain, without its rules; `None` if it is of another table.
pub(super) fn chain(found: &[u8], table: &str) -> Option<(String, TableChain)> {
    if attr(found, 1).and_then(text)? != table {
        return None;
    }
    let name = attr(found, 3).and_then(text)?.to_owned();
    let hook = attr(found, 4).and_then(|place| hook(found, place));
    Some((
        name,
        TableChain {
            hook,
            rules: Vec::new(),
        },
    ))
}

fn hook(found: &[u8], place: &[u8]) -> Option<Hook> {
    Some(Hook {
        kind: attr(found, 7).and_then(text)?.to_owned(),
        number: attr(place, 1).and_then(u32_be)?,
        priority: attr(place, 2).and_then(u32_be)?.cast_signed(),
        accepts: attr(found, 5).and_then(u32_be) == Some(ACCEPT),
    })
}

/// Decodes a rule's message: the chain's name and the expressions; `None` if it is of another table.
pub(super) fn rule(found: &[u8], table: &str) -> Option<(String, Vec<Expr>)> {
    if attr(found, 1).and_then(text)? != table {
        return None;
    }
    let chain = attr(found, 2).and_then(text)?.to_owned();
    let list = attr(found, 4).unwrap_or_default();
    let rule = attrs(list).map(|(_, one)| {
        let name = attr(one, 1).and_then(text).unwrap_or_default();
        let data = attr(one, 2).unwrap_or_default();
        let foreign = || Expr::Foreign {
            name: name.to_owned(),
            data: data.to_vec(),
        };
        expression(name, data).unwrap_or_else(foreign)
    });
    Some((chain, rule.collect()))
}

/// Sums the packet counters of a rule; zero if it is not of this chain.
pub(super) fn sum_counters(found: &[u8], table: &str, chain: &str) -> u64 {
    let names = (attr(found, 1), attr(found, 2));
    if (names.0.and_then(text), names.1.and_then(text)) != (Some(table), Some(chain)) {
        return 0;
    }
    let counters = attrs(attr(found, 4).unwrap_or_default())
        .filter(|(_, one)| attr(one, 1).and_then(text) == Some("counter"));
    counters
        .filter_map(|(_, one)| attr(attr(one, 2)?, 2).and_then(u64_be))
        .sum()
}

/// Decodes a set's message: the name and the set, without members; `None` if it is of another table.
pub(super) fn set(found: &[u8], table: &str) -> Option<(String, Set)> {
    if attr(found, 1).and_then(text)? != table {
        return None;
    }
    let name = attr(found, 2).and_then(text)?.to_owned();
    let number = attr(found, 4).and_then(u32_be);
    let mut keys = SET_KEYS.into_iter();
    // A set of any other type decodes as one whose type does not match its name.
    let key = keys
        .find(|key| Some(key_type(*key).0) == number)
        .or_else(|| SET_KEYS.into_iter().find(|key| set_name(*key) != name))?;
    Some((
        name,
        Set {
            key,
            members: BTreeMap::new(),
        },
    ))
}

/// Decodes the members of a set, with their comments.
pub(super) fn members(found: &[u8]) -> Vec<(SetMember, String)> {
    let list = attr(found, 3).unwrap_or_default();
    attrs(list).filter_map(|(_, one)| member(one)).collect()
}

fn member(one: &[u8]) -> Option<(SetMember, String)> {
    let key = attr(attr(one, 1)?, 1)?;
    let (ip, port) = match key.len() {
        4 | 8 => {
            let (ip, port) = key.split_first_chunk::<4>()?;
            (IpAddr::from(*ip), port)
        }
        _ => {
            let (ip, port) = key.split_first_chunk::<16>()?;
            (IpAddr::from(*ip), port)
        }
    };
    let port = port.first_chunk().map(|port| u16::from_be_bytes(*port));
    let member = SetMember { ip, port };
    Some((member, attr(one, 6).and_then(comment).unwrap_or_default()))
}

fn comment(mut data: &[u8]) -> Option<String> {
    loop {
        let (kind, len) = (*data.first()?, usize::from(*data.get(1)?));
        let value = data.get(2..len + 2)?;
        if kind == 0 {
            return text(value).map(str::to_owned);
        }
        data = data.get(len + 2..)?;
    }
}

fn expression(name: &str, data: &[u8]) -> Option<Expr> {
    let number = |kind| attr(data, kind).and_then(u32_be);
    let register = |kind| (number(kind)? == REGISTER).then_some(());
    match name {
        "meta" if attr(data, 3).is_some() => {
            register(3)?;
            (number(2)? == MetaKey::Mark.number()).then_some(Expr::SetMark)
        }
        "meta" => {
            register(1)?;
            let key = number(2)?;
            MetaKey::ALL
                .into_iter()
                .find(|k| k.number() == key)
                .map(Expr::Meta)
        }
        "payload" => {
            let port = (number(2)?, number(3)?, number(4)?);
            let beside = [Family::V4, Family::V6]
                .into_iter()
                .find(|family| number(1) == Some(register_beside(*family)));
            if let Some(family) = beside {
                let is_port = port == (PayloadBase::Transport.number(), 2, 2);
                return is_port.then_some(Expr::PortAfterAddress(family));
            }
            register(1)?;
            let base = number(2)?;
            let base = [PayloadBase::Network, PayloadBase::Transport]
                .into_iter()
                .find(|b| b.number() == base)?;
            Some(Expr::Payload {
                base,
                offset: number(3)?,
                len: number(4)?,
            })
        }
        "cmp" => {
            register(1)?;
            let equal = match number(2)? {
                0 => true,
                1 => false,
                _ => return None,
            };
            Some(Expr::Cmp {
                equal,
                data: value(data, 3)?,
            })
        }
        "bitwise" => {
            register(1)?;
            register(2)?;
            // Attribute 6 is the operation; 0, or its absence, is mask and xor.
            if number(6).unwrap_or(0) != 0 {
                return None;
            }
            Some(Expr::Bitwise {
                mask: value(data, 4)?,
                xor: value(data, 5)?,
            })
        }
        "ct" => ct(data),
        "immediate" => immediate(data),
        "redir" => {
            register(1)?;
            (number(2).unwrap_or(REGISTER) == REGISTER).then_some(Expr::Redirect)
        }
        "nat" => {
            register(3)?;
            let family = match (number(1)?, number(2)?) {
                (0, 2) => Family::V4,
                (0, 10) => Family::V6,
                _ => return None,
            };
            attr(data, 5).is_none().then_some(Expr::SourceNat(family))
        }
        "lookup" => {
            register(2)?;
            let inverted = number(5).unwrap_or(0) != 0 || attr(data, 3).is_some();
            let set = attr(data, 1).and_then(text)?;
            (!inverted).then(|| Expr::Lookup(set.to_owned()))
        }
        "socket" => {
            register(2)?;
            match number(1)? {
                SOCKET_CGROUP => Some(Expr::SocketCgroup(number(3)?)),
                SOCKET_MARK => Some(Expr::SocketMark),
                _ => None,
            }
        }
        "notrack" => Some(Expr::NoTrack),
        "counter" => Some(Expr::Counter),
        "reject" => (number(1)? == TCP_RESET).then_some(Expr::Reset),
        "fib" => {
            register(1)?;
            let lookup = (number(2)?, number(3)?);
            (lookup == (ADDRESS_TYPE, OF_DESTINATION)).then_some(Expr::DestinationType)
        }
        _ => None,
    }
}

fn ct(data: &[u8]) -> Option<Expr> {
    const MARK: u32 = CtKey::Mark.number();
    const ZONE: u32 = 17;
    let number = |kind| attr(data, kind).and_then(u32_be);
    let key = number(2)?;
    let direction = attr(data, 3).and_then(|d| d.first().copied());
    match (number(4), direction) {
        (Some(REGISTER), None) if key == MARK => Some(Expr::SetCtMark),
        (Some(REGISTER), Some(0)) if key == ZONE => Some(Expr::SetOriginalZone),
        (None, None) if number(1)? == REGISTER => CtKey::ALL
            .into_iter()
            .find(|k| k.number() == key)
            .map(Expr::Ct),
        _ => None,
    }
}

fn immediate(data: &[u8]) -> Option<Expr> {
    match attr(data, 1).and_then(u32_be)? {
        REGISTER => Some(Expr::Data(value(data, 2)?)),
        VERDICT_REGISTER => {
            let verdict = attr(attr(data, 2)?, 2)?;
            match attr(verdict, 1).and_then(u32_be)? {
                ACCEPT => Some(Expr::Accept),
                DROP => Some(Expr::Drop),
                _ => None,
            }
        }
        _ => None,
    }
}

fn value(data: &[u8], kind: u16) -> Option<Vec<u8>> {
    attr(attr(data, kind)?, 1).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use ambit_netplan::{RedirectionSpec, nft::lower, plan};

    use super::*;
    use crate::nft::encode::expression as encode;

    #[test]
    fn expressions_decode_as_they_were_encoded() {
        let spec = RedirectionSpec {
            dns_capture: true,
            virtual_interfaces: vec!["k6t".into()],
            probe_interfaces: vec!["eth0".into()],
            ..RedirectionSpec::default()
        };
        let mut all = vec![
            Expr::SourceNat(Family::V4),
            Expr::SourceNat(Family::V6),
            Expr::Lookup("probes-v6".into()),
            Expr::PortAfterAddress(Family::V4),
            Expr::PortAfterAddress(Family::V6),
            Expr::SocketCgroup(2),
            Expr::SocketMark,
            Expr::Meta(MetaKey::SocketUser),
            Expr::Ct(CtKey::State),
            Expr::Drop,
        ];
        let table = lower(&plan(&spec).unwrap());
        all.extend(
            table
                .chains
                .into_values()
                .flat_map(|chain| chain.rules)
                .flatten(),
        );
        for expr in all {
            let (name, attrs) = encode(&expr);
            assert_eq!(expression(name, &attrs.into_bytes()).as_ref(), Some(&expr));
        }
    }

    #[test]
    fn truncated_or_unknown_objects_are_foreign() {
        let whole = encode(&Expr::Meta(MetaKey::Mark)).1.into_bytes();
        for cut in 0..whole.len() {
            assert_eq!(expression("meta", &whole[..cut]), None);
        }
        assert_eq!(expression("limit", &whole), None);
        assert_eq!(expression("immediate", &[]), None);
    }

    #[test]
    fn comments_are_found_among_other_data_and_never_past_the_end() {
        assert_eq!(comment(&[1, 1, 9, 0, 3, b'a', b'b', 0]), Some("ab".into()));
        assert_eq!(comment(&[0, 9, b'a']), None);
        assert_eq!(comment(&[]), None);
    }
}
