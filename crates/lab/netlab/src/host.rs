//! Network namespace with its interfaces, addresses and routes, configured over rtnetlink.

use std::{
    fs,
    io::{self, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd},
};

use ambit_sys::netns::Netns;
use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::{
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags},
    link::LinkAttribute,
    route::RouteScope,
};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::task::AbortHandle;

use crate::new_netns;

/// Failed operation on the network of a [`Host`], with the cause.
#[derive(Debug, thiserror::Error)]
#[error("{host}: cannot {what}")]
pub struct HostError {
    host: String,
    what: String,
    #[source]
    source: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("{0}")]
    Netlink(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("there is no such interface")]
    NoLink,
}

impl From<rtnetlink::Error> for Cause {
    fn from(error: rtnetlink::Error) -> Self {
        // The library prints kernel errors with the whole reply; the errno alone is enough.
        match error {
            rtnetlink::Error::NetlinkError(message) => Self::Io(message.to_io()),
            other => Self::Netlink(other.to_string()),
        }
    }
}

/// Network namespace of a node or pod, with a name for error messages and a netlink connection. Cheap to clone; needs a
/// tokio runtime.
#[derive(Clone, Debug)]
pub struct Host {
    name: String,
    netns: Netns,
    netlink: Handle,
    _connection: std::sync::Arc<Connection>,
}

#[derive(Debug)]
struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Host {
    /// Creates a network namespace with loopback up.
    ///
    /// # Errors
    /// When the caller may not create network namespaces.
    pub async fn new(name: impl Into<String>) -> Result<Self, HostError> {
        let name = name.into();
        let netns = new_netns().map_err(|source| HostError {
            host: name.clone(),
            what: "make its network namespace".into(),
            source: source.into(),
        })?;
        let host = Self::in_namespace(name, netns)?;
        host.bring_up("lo").await?;
        Ok(host)
    }

    /// Creates a handle for the network namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn current_namespace(name: impl Into<String>) -> Result<Self, HostError> {
        let name = name.into();
        match Netns::current() {
            Ok(netns) => Self::in_namespace(name, netns),
            Err(error) => Err(HostError {
                host: name,
                what: "find its network namespace".into(),
                source: error.into(),
            }),
        }
    }

    /// Creates a handle for an existing network namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn in_namespace(name: impl Into<String>, netns: Netns) -> Result<Self, HostError> {
        let name = name.into();
        // The socket stays in the namespace in which it was opened.
        let connection = netns.run(rtnetlink::new_connection).and_then(|made| made);
        let (connection, netlink, _) = connection.map_err(|source| HostError {
            host: name.clone(),
            what: "open netlink in its namespace".into(),
            source: source.into(),
        })?;
        let task = ambit_rt::spawn("netlink", connection);
        let connection = std::sync::Arc::new(Connection(task.abort_handle()));
        Ok(Self {
            name,
            netns,
            netlink,
            _connection: connection,
        })
    }

    /// Returns the name of the host in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the network namespace of the host.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Runs `work` with the calling thread in the network namespace, as [`Netns::run`] does.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        self.netns.run(work)
    }

    /// Writes a network sysctl of this namespace, such as `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// When the kernel has no such setting or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), HostError> {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        let done = self
            .netns
            .run(|| fs::write(&path, value))
            .and_then(|done| done);
        done.map_err(|error| self.error(format!("set {key} to {value}"), error))
    }

    /// Returns the index of the interface of this name; `None` if there is none.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub async fn find_link(&self, link: &str) -> Result<Option<u32>, HostError> {
        let mut links = self.netlink.link().get().match_name(link).execute();
        match links.try_next().await {
            Ok(found) => Ok(found.map(|link| link.header.index)),
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -ENODEV => Ok(None),
            Err(error) => Err(self.error(format!("look for interface {link}"), error)),
        }
    }

    /// Adds a bridge with a fixed MAC address and brings it up. Without a fixed address, the kernel uses the lowest MAC
    /// address of the bridge's ports, so that each added or removed port may invalidate the gateway's entry in the
    /// neighbours' caches.
    ///
    /// # Errors
    /// Errors of the kernel, for instance if an interface of that name exists.
    pub async fn add_bridge(&self, name: &str) -> Result<(), HostError> {
        let what = || format!("add bridge {name}");
        let address = random_hardware_address().map_err(|error| self.error(what(), error))?;
        let message = LinkBridge::new(name).address(address).up().build();
        let done = self.netlink.link().add(message).execute().await;
        done.map_err(|error| self.error(what(), error))
    }

    /// Adds a veth pair, one end in this namespace, the other in that of `peer`; both are down.
    ///
    /// # Errors
    /// Errors of the kernel, for instance if an interface of that name exists.
    pub async fn add_veth(
        &self,
        name: &str,
        peer: &Self,
        peer_name: &str,
    ) -> Result<(), HostError> {
        // The peer's final name may be taken here: it is set once the peer is in its namespace.
        let passing = format!("p{}", name.chars().take(14).collect::<String>());
        let what = || format!("connect {name} with {peer_name} of {}", peer.name);
        let message = LinkVeth::new(name, &passing).build();
        let done = self.netlink.link().add(message).execute().await;
        done.map_err(|error| self.error(what(), error))?;
        let index = self.link_index(&passing).await?;
        let message = LinkUnspec::new_with_index(index)
            .name(peer_name)
            .setns_by_fd(peer.netns.as_fd().as_raw_fd())
            .build();
        let done = self.netlink.link().set(message).execute().await;
        done.map_err(|error| self.error(what(), error))
    }

    /// Brings an interface up.
    ///
    /// # Errors
    /// Errors of the kernel, or when there is no such interface.
    pub async fn bring_up(&self, link: &str) -> Result<(), HostError> {
        let index = self.link_index(link).await?;
        let message = LinkUnspec::new_with_index(index).up().build();
        let done = self.netlink.link().set(message).execute().await;
        done.map_err(|error| self.error(format!("take {link} up"), error))
    }

    /// Attaches an interface to a bridge.
    ///
    /// # Errors
    /// Errors of the kernel, or when either does not exist.
    pub async fn attach_to_bridge(&self, link: &str, bridge: &str) -> Result<(), HostError> {
        let bridge_index = self.link_index(bridge).await?;
        let index = self.link_index(link).await?;
        let message = LinkUnspec::new_with_index(index)
            .controller(bridge_index)
            .build();
        let done = self.netlink.link().set(message).execute().await;
        done.map_err(|error| self.error(format!("attach {link} to bridge {bridge}"), error))
    }

    /// Adds an address to an interface, usable at once (without duplicate address detection); it is no error if the
    /// interface has it already.
    ///
    /// # Errors
    /// Errors of the kernel, or when there is no such interface.
    pub async fn add_address(&self, link: &str, address: IpNet) -> Result<(), HostError> {
        let index = self.link_index(link).await?;
        let mut request = self
            .netlink
            .address()
            .add(index, address.addr(), address.prefix_len())
            .replace();
        if address.addr().is_ipv6() {
            let message = request.message_mut();
            message.header.flags |= AddressHeaderFlags::Nodad;
            message
                .attributes
                .push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let done = request.execute().await;
        done.map_err(|error| self.error(format!("give {link} the address {address}"), error))
    }

    /// Returns the addresses of an interface.
    ///
    /// # Errors
    /// Errors of the kernel, or when there is no such interface.
    pub async fn addresses(&self, link: &str) -> Result<Vec<IpNet>, HostError> {
        let index = self.link_index(link).await?;
        let request = self.netlink.address().get().set_link_index_filter(index);
        let messages: Vec<_> = request
            .execute()
            .try_collect()
            .await
            .map_err(|error| self.error(format!("list the addresses of {link}"), error))?;
        let address = |message: &netlink_packet_route::address::AddressMessage| {
            message
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    AddressAttribute::Address(ip) => {
                        IpNet::new(*ip, message.header.prefix_len).ok()
                    }
                    _ => None,
                })
        };
        Ok(messages.iter().filter_map(address).collect())
    }

    /// Adds or replaces a route: through a gateway, or directly through an interface.
    ///
    /// # Errors
    /// Errors of the kernel, or when there is no such interface.
    pub async fn add_route(
        &self,
        destination: IpNet,
        gateway: Option<IpAddr>,
        link: &str,
    ) -> Result<(), HostError> {
        let index = self.link_index(link).await?;
        let what = || match gateway {
            Some(gateway) => format!("route {destination} via {gateway} dev {link}"),
            None => format!("route {destination} dev {link}"),
        };
        let length = destination.prefix_len();
        let message = match destination.addr() {
            IpAddr::V4(ip) => {
                let route = RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(ip, length)
                    .output_interface(index);
                match gateway {
                    Some(IpAddr::V4(gateway)) => route.gateway(gateway).onlink(),
                    _ => route.scope(RouteScope::Link),
                }
                .build()
            }
            IpAddr::V6(ip) => {
                let route = RouteMessageBuilder::<Ipv6Addr>::new()
                    .destination_prefix(ip, length)
                    .output_interface(index);
                match gateway {
                    Some(IpAddr::V6(gateway)) => route.gateway(gateway),
                    _ => route,
                }
                .build()
            }
        };
        let done = self.netlink.route().add(message).replace().execute().await;
        done.map_err(|error| self.error(what(), error))
    }

    /// Removes the interface of this name, if there is one.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub async fn remove_link(&self, link: &str) -> Result<(), HostError> {
        let Some(index) = self.find_link(link).await? else {
            return Ok(());
        };
        let done = self.netlink.link().del(index).execute().await;
        done.map_err(|error| self.error(format!("remove interface {link}"), error))
    }

    /// Returns the names of all interfaces in the namespace.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub async fn links(&self) -> Result<Vec<String>, HostError> {
        let links: Vec<_> = self
            .netlink
            .link()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(|error| self.error("list its interfaces".into(), error))?;
        let name = |attribute: &LinkAttribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        };
        Ok(links
            .iter()
            .filter_map(|link| link.attributes.iter().find_map(name))
            .collect())
    }

    async fn link_index(&self, link: &str) -> Result<u32, HostError> {
        let found = self.find_link(link).await?;
        found.ok_or_else(|| self.error(format!("use interface {link}"), Cause::NoLink))
    }

    fn error(&self, what: String, source: impl Into<Cause>) -> HostError {
        HostError {
            host: self.name.clone(),
            what,
            source: source.into(),
        }
    }
}

/// Returns a random unicast MAC address, locally administered (IEEE 802, 8.2.2).
fn random_hardware_address() -> io::Result<Vec<u8>> {
    let mut address = [0; 6];
    fs::File::open("/dev/urandom")?.read_exact(&mut address)?;
    address[0] = (address[0] & !0b11) | 0b10;
    Ok(address.into())
}

/// Error number "No such device" (errno.h); netlink returns it negated.
const ENODEV: i32 = 19;

#[cfg(test)]
mod tests;
