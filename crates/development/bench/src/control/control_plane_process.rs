//! The measured control plane: the real program, which follows a simulated API server.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

use super::proxies::ControlPlaneTarget;
use crate::process;

/// Running `ambit-control`, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct ControlPlaneProcess {
    process: Child,
    xds: SocketAddr,
    monitoring: SocketAddr,
    root: std::path::PathBuf,
    started: Instant,
}

/// CPU time and memory of the control plane at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    measured_at: Instant,
    cpu: Duration,
    pub(super) resident: f64,
}

impl Usage {
    /// Returns the mean number of CPU cores in use since an earlier time.
    pub(super) fn cores_since(self, earlier: Self) -> f64 {
        let elapsed = self
            .measured_at
            .duration_since(earlier.measured_at)
            .as_secs_f64();
        self.seconds_since(earlier) / elapsed.max(0.001)
    }

    /// Returns the CPU time in seconds used since an earlier time.
    pub(super) fn seconds_since(self, earlier: Self) -> f64 {
        self.cpu.saturating_sub(earlier.cpu).as_secs_f64()
    }
}

impl ControlPlaneProcess {
    /// Starts the control plane, which logs into `directory`.
    pub(super) fn start(kubeconfig: &str, directory: &Path) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("ambit-control");
        let config = directory.join("kubeconfig");
        fs::write(&config, kubeconfig)?;
        let (xds, mut monitoring) = (free_port()?, free_port()?);
        // Attackers use an address that is not loopback.
        monitoring.set_ip(Ipv4Addr::UNSPECIFIED.into());
        let root = directory.join("root-cert.pem");
        let log = fs::File::create(directory.join("control.log"))?;
        let process = Command::new(&program)
            .env("POD_NAME", "ambit-control-0")
            .arg("--kubeconfig")
            .arg(&config)
            .arg("--listen-xds")
            .arg(xds.to_string())
            .arg("--listen-monitoring")
            .arg(monitoring.to_string())
            .arg("--listen-http")
            .arg(free_port()?.to_string())
            .arg("--root-cert-out")
            .arg(&root)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        Ok(Self {
            process,
            xds,
            monitoring,
            root,
            started: Instant::now(),
        })
    }

    /// Waits until the control plane is ready; returns the time since its start.
    pub(super) fn wait_until_ready(&mut self, within: Duration) -> Result<Duration> {
        let deadline = Instant::now() + within;
        while !self.is_ready() {
            let ended = self.process.try_wait()?;
            ensure!(
                ended.is_none(),
                "ambit-control ended: {ended:?}; see its log"
            );
            ensure!(
                Instant::now() < deadline,
                "ambit-control is not ready after {within:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(self.started.elapsed())
    }

    fn is_ready(&self) -> bool {
        let asked = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.monitoring.port()))?;
            stream
                .write_all(b"GET /ready HTTP/1.1\r\nHost: control\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        asked().is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
    }

    /// Returns the port of the monitoring pages, on every address of this machine.
    pub(super) fn monitoring_port(&self) -> u16 {
        self.monitoring.port()
    }

    /// Returns the address and credentials with which proxies connect to the control plane.
    pub(super) fn target(&self) -> Result<ControlPlaneTarget> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&self.root)? {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(ControlPlaneTarget {
            address: self.xds,
            tls: Arc::new(tls),
            server_name: ServerName::try_from("istiod.istio-system.svc")?,
        })
    }

    pub(super) fn usage(&self) -> Result<Usage> {
        let pid = &[self.process.id()];
        Ok(Usage {
            measured_at: Instant::now(),
            cpu: process::cpu_time(pid)?,
            resident: process::resident_mb(pid)?,
        })
    }

    pub(super) fn peak_mb(&self) -> Result<f64> {
        process::peak_mb(&[self.process.id()])
    }
}

impl Drop for ControlPlaneProcess {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
