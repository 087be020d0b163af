//! Real SPIRE: a server and an agent as processes, with a test's registration entries.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{built_binary, wait_until_within};

/// SPIFFE ID of the agent's node.
const NODE_ID: &str = "spiffe://cluster.local/node";
/// SPIFFE ID of the delegate, which may request the SVIDs of other processes.
const DELEGATE_ID: &str = "spiffe://cluster.local/ns/istio-system/sa/ztunnel";
/// Selectors that match the test's own process.
const SELF_SELECTORS: &[&str] = &["unix:uid:0"];
/// Timeout until the server or agent is ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// SPIRE server of trust domain `cluster.local` and SPIRE agent; both stop when dropped.
#[derive(Debug)]
pub struct Spire {
    directory: tempfile::TempDir,
    server: Child,
    agent: Option<Child>,
}

impl Spire {
    /// Starts server and agent; X.509-SVIDs have the lifetime `ttl`. The test's process is the agent's delegate.
    pub fn start(ttl: Duration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let port = free_port();
        let path = |name: &str| directory.path().join(name).display().to_string();
        for name in ["public", "private", "server"] {
            fs::create_dir(path(name)).expect("a directory");
        }
        let server_conf = format!(
            r#"server {{
  bind_address = "127.0.0.1"
  bind_port = "{port}"
  socket_path = "{}"
  trust_domain = "cluster.local"
  data_dir = "{}"
  log_level = "INFO"
  default_x509_svid_ttl = "{}s"
}}
plugins {{
  DataStore "sql" {{ plugin_data {{ database_type = "sqlite3", connection_string = "{}" }} }}
  NodeAttestor "join_token" {{ plugin_data {{}} }}
  KeyManager "memory" {{ plugin_data {{}} }}
}}
"#,
            path("server/api.sock"),
            path("server"),
            ttl.as_secs(),
            path("server/datastore.sqlite3"),
        );
        let agent_conf = format!(
            r#"agent {{
  data_dir = "{}"
  log_level = "INFO"
  server_address = "127.0.0.1"
  server_port = "{port}"
  socket_path = "{}"
  admin_socket_path = "{}"
  insecure_bootstrap = true
  trust_domain = "cluster.local"
  authorized_delegates = ["{DELEGATE_ID}"]
  experimental {{ sync_interval = "1s" }}
}}
plugins {{
  NodeAttestor "join_token" {{ plugin_data {{}} }}
  KeyManager "memory" {{ plugin_data {{}} }}
  WorkloadAttestor "unix" {{ plugin_data {{}} }}
}}
"#,
            path(""),
            path("public/workload.sock"),
            path("private/admin.sock"),
        );
        fs::write(path("server.conf"), server_conf).expect("a configuration");
        fs::write(path("agent.conf"), agent_conf).expect("a configuration");
        let server = start_process(directory.path(), "server", &[]);
        let mut spire = Self {
            directory,
            server,
            agent: None,
        };
        wait_until_within(START_TIMEOUT, "SPIRE's server", || {
            spire.command(&["healthcheck"]).is_ok()
        });
        spire.register(DELEGATE_ID, SELF_SELECTORS, &[]);
        spire.start_agent();
        spire
    }

    /// Starts an agent, with a new join token of the server.
    pub fn start_agent(&mut self) {
        let token = self.run(&["token", "generate", "-spiffeID", NODE_ID]);
        let token = token.trim().trim_start_matches("Token: ").to_owned();
        let agent = start_process(self.directory.path(), "agent", &["-joinToken", &token]);
        self.agent = Some(agent);
        wait_until_within(START_TIMEOUT, "SPIRE's agent", || {
            self.path("private/admin.sock").exists()
        });
    }

    /// Kills the agent.
    pub fn stop_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            kill_and_wait(&mut agent);
        }
        for name in ["private/admin.sock", "public/workload.sock"] {
            // The next agent binds the socket again.
            let _gone = fs::remove_file(self.path(name));
        }
    }

    /// Creates a registration entry for a SPIFFE ID, with selectors and additional options of
    /// `spire-server entry create`.
    pub fn register(&self, id: &str, selectors: &[&str], options: &[&str]) {
        let mut arguments = vec!["entry", "create", "-parentID", NODE_ID, "-spiffeID", id];
        for selector in selectors {
            arguments.extend(["-selector", selector]);
        }
        arguments.extend(options);
        self.run(&arguments);
    }

    /// Creates a registration entry for the test's own process.
    pub fn register_self(&self, id: &str) {
        self.register(id, SELF_SELECTORS, &[]);
    }

    /// Adds the trust bundle (PEM) of another trust domain, such as `spiffe://west`.
    pub fn accept_bundle(&self, id: &str, pem: &str) {
        let path = self.path("bundle.pem");
        fs::write(&path, pem).expect("a bundle");
        let path = path.display().to_string();
        self.run(&["bundle", "set", "-id", id, "-path", &path]);
    }

    /// Deletes the trust bundle of another trust domain, and the entries' federation with it.
    pub fn withdraw_bundle(&self, id: &str) {
        self.run(&["bundle", "delete", "-id", id, "-mode", "dissociate"]);
    }

    /// Returns the Workload API's socket, in the form of a program's setting.
    pub fn workload_socket(&self) -> String {
        format!("unix://{}", self.path("public/workload.sock").display())
    }

    /// Returns the Delegated Identity API's socket, in the form of a program's setting.
    pub fn admin_socket(&self) -> String {
        format!("unix://{}", self.path("private/admin.sock").display())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> String {
        self.command(arguments)
            .unwrap_or_else(|error| panic!("spire server {arguments:?}: {error}"))
    }

    /// Runs `spire-server` with these arguments.
    fn command(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(built_binary("spire"));
        let output = command
            .arg("server")
            .args(arguments)
            .arg("-socketPath")
            .arg(self.path("server/api.sock"))
            .output()
            .expect("SPIRE runs");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

impl Drop for Spire {
    fn drop(&mut self) {
        self.stop_agent();
        kill_and_wait(&mut self.server);
        if std::thread::panicking() {
            for name in ["server.log", "agent.log"] {
                let log = fs::read_to_string(self.path(name)).unwrap_or_default();
                eprintln!("{name}:\n{log}");
            }
        }
    }
}

fn start_process(directory: &Path, name: &str, arguments: &[&str]) -> Child {
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(directory.join(format!("{name}.log")))
        .expect("a log");
    let errors = log.try_clone().expect("a log");
    Command::new(built_binary("spire"))
        .args([name, "run", "-config"])
        .arg(directory.join(format!("{name}.conf")))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .expect("SPIRE starts")
}

fn kill_and_wait(child: &mut Child) {
    // The process may have ended already.
    let _ended = child.kill();
    let _reaped = child.wait();
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}
