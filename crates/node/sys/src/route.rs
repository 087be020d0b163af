//! Adds and removes the policy rule and local route that bring replies to spoofed sources back to the proxy.

use std::{io, net::IpAddr};

use ambit_netplan::{Family, PolicyRouting};

use crate::netlink::{Attrs, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Socket, attr, text, u32_ne};

const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_RULE: u16 = 32;
const DELETE_RULE: u16 = 33;
const GET_RULE: u16 = 34;

/// Index of the loopback interface, equal in every namespace.
const LOOPBACK: u32 = 1;
const LOOPBACK_NAME: &str = "lo";
const UNSPEC_TABLE: u8 = 0;
const TO_TABLE: u8 = 1;
const LOCAL: u8 = 2;
const SCOPE_HOST: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
/// Attributes of policy rules (`FRA_*`) and routes (`RTA_*`).
const RULE_PRIORITY: u16 = 6;
const RULE_INPUT: u16 = 3;
const RULE_MARK: u16 = 10;
const RULE_TABLE: u16 = 15;
const RULE_MASK: u16 = 16;
const ROUTE_OUT: u16 = 4;
const ROUTE_SOURCE: u16 = 7;
const ROUTE_TABLE: u16 = 15;

/// Netlink socket for the policy rules and routes of the namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Routing {
    socket: Socket,
}

/// Whether the rule and the route of a [`PolicyRouting`] exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) rule: bool,
    pub(crate) route: bool,
}

impl Routing {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            socket: Socket::open(None)?,
        })
    }

    pub(crate) fn observe(&mut self, routing: &PolicyRouting) -> io::Result<Present> {
        let mut present = Present {
            rule: false,
            route: false,
        };
        let family = number(routing.family);
        let mut header = [0; 12];
        header[0] = family;
        self.socket.dump(GET_RULE, &[&header], |found| {
            present.rule |= found.first() == Some(&family) && is_rule(found, routing);
        })?;
        self.socket.dump(GET_ROUTE, &[&header], |found| {
            present.route |= found.first() == Some(&family) && is_route(found, routing);
        })?;
        Ok(present)
    }

    /// Adds the policy rule and the local route if they are missing. Tries both, even if one fails.
    pub(crate) fn ensure(&mut self, routing: &PolicyRouting) -> io::Result<()> {
        let rule = self.change_rule(NEW_RULE, NLM_F_CREATE | NLM_F_EXCL, routing);
        let route = self.change_route(NEW_ROUTE, NLM_F_CREATE | NLM_F_REPLACE, routing);
        ignore(rule, io::ErrorKind::AlreadyExists).and(route)
    }

    /// Removes the policy rule and the local route; a missing one is no error.
    pub(crate) fn remove(&mut self, routing: &PolicyRouting) -> io::Result<()> {
        const ESRCH: i32 = 3;
        let rule = self.change_rule(DELETE_RULE, 0, routing);
        let route = match self.change_route(DELETE_ROUTE, 0, routing) {
            Err(error) if error.raw_os_error() == Some(ESRCH) => Ok(()),
            other => other,
        };
        ignore(rule, io::ErrorKind::NotFound).and(route)
    }

    fn change_rule(&mut self, kind: u16, flags: u16, routing: &PolicyRouting) -> io::Result<()> {
        // struct fib_rule_hdr: family, dst_len, src_len, tos, table, res1, res2, action, flags.
        let header = [
            number(routing.family),
            0,
            0,
            0,
            UNSPEC_TABLE,
            0,
            0,
            TO_TABLE,
            0,
            0,
            0,
            0,
        ];
        let attrs = Attrs::new()
            .u32(RULE_PRIORITY, routing.preference)
            .u32(RULE_MARK, routing.mark)
            .u32(RULE_MASK, routing.mask)
            .u32(RULE_TABLE, routing.table);
        // Packets that begin here have loopback as their input.
        let attrs = if routing.is_own_only {
            attrs.text(RULE_INPUT, LOOPBACK_NAME)
        } else {
            attrs
        };
        let attrs = attrs.into_bytes();
        self.socket.request(kind, flags, &[&header, &attrs])
    }

    fn change_route(&mut self, kind: u16, flags: u16, routing: &PolicyRouting) -> io::Result<()> {
        // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
        let header = [
            number(routing.family),
            0,
            0,
            0,
            UNSPEC_TABLE,
            PROTOCOL_STATIC,
            SCOPE_HOST,
            LOCAL,
            0,
            0,
            0,
            0,
        ];
        let attrs = Attrs::new()
            .u32(ROUTE_TABLE, routing.table)
            .u32(ROUTE_OUT, LOOPBACK);
        let attrs = match routing.source {
            Some(IpAddr::V4(ip)) => attrs.bytes(ROUTE_SOURCE, &ip.octets()),
            Some(IpAddr::V6(ip)) => attrs.bytes(ROUTE_SOURCE, &ip.octets()),
            None => attrs,
        };
        let attrs = attrs.into_bytes();
        self.socket.request(kind, flags, &[&header, &attrs])
    }
}

fn ignore(result: io::Result<()>, kind: io::ErrorKind) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        other => other,
    }
}

fn is_rule(found: &[u8], routing: &PolicyRouting) -> bool {
    let attrs = found.get(12..).unwrap_or_default();
    let is = |kind, value| attr(attrs, kind).and_then(u32_ne) == Some(value);
    found.get(7) == Some(&TO_TABLE)
        && is(RULE_PRIORITY, routing.preference)
        && is(RULE_MARK, routing.mark)
        && is(RULE_MASK, routing.mask)
        && is(RULE_TABLE, routing.table)
        && attr(attrs, RULE_INPUT).and_then(text) == routing.is_own_only.then_some(LOOPBACK_NAME)
}

fn is_route(found: &[u8], routing: &PolicyRouting) -> bool {
    let attrs = found.get(12..).unwrap_or_default();
    let is = |kind, value| attr(attrs, kind).and_then(u32_ne) == Some(value);
    found.get(1) == Some(&0)
        && found.get(7) == Some(&LOCAL)
        && is(ROUTE_TABLE, routing.table)
        && is(ROUTE_OUT, LOOPBACK)
        && attr(attrs, ROUTE_SOURCE).map(<[u8]>::to_vec)
            == routing.source.map(|source| match source {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            })
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}
