//! Default primary CNI plugin of labs. It attaches pods to a bridge, assigns addresses from files, and routes all
//! packets of a pod, also to pods of the same node, through the node, so that the node sees (and translates) both
//! directions of each connection.
//!
//! It runs in the node's namespace under the name [`PLUGIN_NAME`], and supports CNI 0.4.0 to 1.1.0.

use std::{
    env, fs,
    fs::File,
    io::{self, Read},
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use ambit_netlab::{Host, HostError, Netns};
use ambit_rt::ErrorChain;
use ipnet::IpNet;
use rustix::fs::FlockOperation;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::addresses::{default_route, host_route};

/// File name under which the `ambit` binary runs as this CNI plugin.
pub const PLUGIN_NAME: &str = "ambit-lab-cni";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    cni_version: Option<String>,
    bridge: String,
    /// Addresses of the node in each pod network, with the network's prefix length.
    gateways: Vec<IpNet>,
    /// Directory with a file for each allocated address.
    data_dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("{0} is not set")]
    Environment(&'static str),
    #[error("cannot read the configuration: {0}")]
    Config(#[from] serde_json::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("no address is free in {0}")]
    Exhausted(IpNet),
    #[error("unknown command {0:?}")]
    Command(String),
}

/// Runs the plugin as the CNI specification requires: parameters in the environment, configuration on standard input,
/// result on standard output.
#[expect(clippy::print_stdout, reason = "CNI results go to standard output")]
pub fn run_plugin() -> ExitCode {
    match execute() {
        Ok(Some(result)) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            let text = ErrorChain(&error).to_string();
            println!(
                "{}",
                json!({"cniVersion": "1.0.0", "code": 999, "msg": text})
            );
            ExitCode::FAILURE
        }
    }
}

fn execute() -> Result<Option<Value>, PluginError> {
    let command = environment_variable("CNI_COMMAND")?;
    if command == "VERSION" {
        let versions = ["0.4.0", "1.0.0", "1.1.0"];
        return Ok(Some(
            json!({"cniVersion": "1.1.0", "supportedVersions": versions}),
        ));
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let config: Config = serde_json::from_str(&text)?;
    let runtime = ambit_rt::current_thread_runtime()?;
    match command.as_str() {
        "ADD" => runtime.block_on(add(&config)).map(Some),
        "DEL" => runtime.block_on(delete(&config)).map(|()| None),
        "CHECK" | "STATUS" | "GC" => Ok(None),
        _ => Err(PluginError::Command(command)),
    }
}

fn environment_variable(name: &'static str) -> Result<String, PluginError> {
    env::var(name).map_err(|_| PluginError::Environment(name))
}

async fn add(config: &Config) -> Result<Value, PluginError> {
    let container = environment_variable("CNI_CONTAINERID")?;
    let interface = environment_variable("CNI_IFNAME")?;
    let sandbox = environment_variable("CNI_NETNS")?;
    let node = Host::in_namespace("node", Netns::current()?)?;
    let pod = Host::in_namespace("pod", Netns::open(&sandbox)?)?;
    ensure_bridge(&node, config).await?;
    let veth = veth_name(&container);
    // Left by an attempt that was cut short.
    node.remove_link(&veth).await?;
    let leases = Leases::open(&config.data_dir)?;
    let wired = connect_pod(&node, &pod, config, &leases, &container, &veth, &interface).await;
    let addresses = match wired {
        Ok(addresses) => addresses,
        Err(error) => {
            leases.release(&container)?;
            node.remove_link(&veth).await?;
            return Err(error);
        }
    };
    let ips: Vec<_> = addresses
        .iter()
        .map(
            |(ip, gateway)| json!({"address": host_route(*ip), "gateway": gateway, "interface": 2}),
        )
        .collect();
    let routes: Vec<_> = addresses
        .iter()
        .map(|(ip, gateway)| json!({"dst": default_route(*ip), "gw": gateway}))
        .collect();
    Ok(json!({
        "cniVersion": config.cni_version.as_deref().unwrap_or("0.4.0"),
        "interfaces": [
            {"name": config.bridge}, {"name": veth}, {"name": interface, "sandbox": sandbox},
        ],
        "ips": ips,
        "routes": routes,
        "dns": {},
    }))
}

async fn connect_pod(
    node: &Host,
    pod: &Host,
    config: &Config,
    leases: &Leases,
    container: &str,
    veth: &str,
    interface: &str,
) -> Result<Vec<(IpAddr, IpAddr)>, PluginError> {
    node.add_veth(veth, pod, interface).await?;
    node.attach_to_bridge(veth, &config.bridge).await?;
    node.bring_up(veth).await?;
    // A node that forwards back out of the same bridge may send an ICMP redirect; a pod that accepted
    // it would bypass the translation of service addresses.
    for family in ["ipv4", "ipv6"] {
        let _no_such_family = pod.sysctl(
            &format!("net.{family}.conf.{interface}.accept_redirects"),
            "0",
        );
        let _no_such_family = pod.sysctl(&format!("net.{family}.conf.all.accept_redirects"), "0");
    }
    pod.bring_up(interface).await?;
    let mut addresses = Vec::new();
    for gateway in &config.gateways {
        let ip = leases.allocate(*gateway, container)?;
        pod.add_address(interface, host_route(ip)).await?;
        pod.add_route(host_route(gateway.addr()), None, interface)
            .await?;
        pod.add_route(default_route(ip), Some(gateway.addr()), interface)
            .await?;
        addresses.push((ip, gateway.addr()));
    }
    Ok(addresses)
}

async fn ensure_bridge(node: &Host, config: &Config) -> Result<(), PluginError> {
    if node.find_link(&config.bridge).await?.is_none() {
        // Two pods may start at once: the bridge may exist already.
        if let Err(error) = node.add_bridge(&config.bridge).await
            && node.find_link(&config.bridge).await?.is_none()
        {
            return Err(error.into());
        }
    }
    node.bring_up(&config.bridge).await?;
    for gateway in &config.gateways {
        node.add_address(&config.bridge, *gateway).await?;
    }
    Ok(())
}

async fn delete(config: &Config) -> Result<(), PluginError> {
    let container = environment_variable("CNI_CONTAINERID")?;
    let node = Host::in_namespace("node", Netns::current()?)?;
    node.remove_link(&veth_name(&container)).await?;
    Leases::open(&config.data_dir)?.release(&container)?;
    Ok(())
}

/// Returns the name of the host's end of a pod's veth pair: unique for each sandbox, at most 15 bytes.
fn veth_name(container: &str) -> String {
    format!(
        "veth{}",
        container
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(10)
            .collect::<String>()
    )
}

/// Allocated addresses, one file each, under a lock. An address is reused only after all others of its network, so that
/// other components do not apply state of a deleted pod to a new pod.
struct Leases {
    dir: PathBuf,
    _lock: File,
}

impl Leases {
    fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Self {
            dir: dir.to_owned(),
            _lock: lock,
        })
    }

    fn allocate(&self, gateway: IpNet, container: &str) -> Result<IpAddr, PluginError> {
        let family = if gateway.addr().is_ipv4() { "4" } else { "6" };
        let last_file = self.dir.join(format!("last{family}"));
        let last = fs::read_to_string(&last_file)
            .ok()
            .and_then(|text| text.parse().ok());
        // 250 pods a node are enough, also where the network has 2^64 addresses.
        let hosts: Vec<_> = gateway.hosts().skip(1).take(250).collect();
        let start = hosts
            .iter()
            .position(|ip| Some(*ip) == last)
            .map_or(0, |index| index + 1);
        let turn = hosts.iter().cycle().skip(start).take(hosts.len());
        for ip in turn.filter(|ip| **ip != gateway.addr()) {
            let file = File::options()
                .write(true)
                .create_new(true)
                .open(self.dir.join(ip.to_string()));
            match file {
                Ok(mut file) => {
                    io::Write::write_all(&mut file, container.as_bytes())?;
                    fs::write(&last_file, ip.to_string())?;
                    return Ok(*ip);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(PluginError::Exhausted(gateway.trunc()))
    }

    fn release(&self, container: &str) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let is_lease = path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.parse::<IpAddr>().is_ok());
            if is_lease && fs::read(&path)? == container.as_bytes() {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_reused_only_after_all_others() {
        let dir = tempfile::tempdir().unwrap();
        let leases = Leases::open(dir.path()).unwrap();
        let gateway: IpNet = "10.1.0.1/29".parse().unwrap();
        let take = |name: &str| leases.allocate(gateway, name).map(|ip| ip.to_string());
        assert_eq!(take("a").unwrap(), "10.1.0.2");
        assert_eq!(take("b").unwrap(), "10.1.0.3");
        leases.release("a").unwrap();
        assert_eq!(take("c").unwrap(), "10.1.0.4");
        for name in ["d", "e"] {
            take(name).unwrap();
        }
        assert_eq!(take("f").unwrap(), "10.1.0.2");
        assert!(take("g").unwrap_err().to_string().contains("10.1.0.0/29"));
    }
}
