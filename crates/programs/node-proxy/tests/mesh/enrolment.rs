//! Tests pods that the agent adds and removes over its socket.

use std::{net::SocketAddr, os::fd::AsFd, sync::Arc, time::Duration};

use ambit_handover::Supervisor;
use ambit_model::PodName;
use ambit_node_proxy::pods::EnrolmentClient;
use ambit_rt::Readiness;
use ambit_sys::seqpacket::{SeqPacket, SeqPacketListener};
use ambit_wire::zds_codec::{decode_ack, decode_hello, encode_request};
use ambit_zds::{Ack, Request, WorkloadInfo};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost, read_line};

struct Agent {
    link: SeqPacket,
}

impl Agent {
    async fn accept(listener: &SeqPacketListener) -> Self {
        let link = tokio::time::timeout(OPERATION_TIMEOUT, listener.accept())
            .await
            .unwrap()
            .unwrap();
        let agent = Self { link };
        assert_eq!(decode_hello(&agent.receive_record().await).unwrap(), 1);
        agent
    }

    async fn receive_record(&self) -> Vec<u8> {
        let mut buffer = [0; 1024];
        let received = tokio::time::timeout(OPERATION_TIMEOUT, self.link.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        buffer[..received.len].to_vec()
    }

    async fn send_request(&self, request: Request, pod: Option<&PodHost>) -> Ack {
        let fd = pod.map(|pod| pod.netns().as_fd());
        self.link.send(&encode_request(&request), fd).await.unwrap();
        decode_ack(&self.receive_record().await).unwrap()
    }

    async fn add(&self, pod: &PodHost) -> Ack {
        self.send_request(
            Request::Add {
                uid: uid(pod),
                info: Some(info(pod)),
            },
            Some(pod),
        )
        .await
    }
}

fn uid(pod: &PodHost) -> ambit_model::ArcStr {
    format!("uid-{}", pod.name).into()
}

fn info(pod: &PodHost) -> WorkloadInfo {
    let name = PodName {
        name: pod.name.as_str().into(),
        namespace: "ns".into(),
        service_account: pod.name.as_str().into(),
    };
    WorkloadInfo {
        pod: name,
        addresses: vec![pod.ip],
    }
}

#[tokio::test]
async fn pods_are_served_from_ack_to_delete_without_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zds.sock");
    let listener = SeqPacketListener::bind(&path).unwrap();
    let mut mesh = Mesh::with_env(&[("INPOD_UDS", path.to_str().unwrap())]).await;
    let readiness = Readiness::new();
    let task = readiness.add_pending_task("workload proxy manager");
    let node = &mesh.nodes[0];
    let enrolment = EnrolmentClient::new(
        node.proxy.clone(),
        Arc::clone(&node.workers),
        Supervisor::unsupervised(),
        task,
    );
    let served = enrolment.served();
    let _enrolment = ambit_rt::spawn_abortable("enrolment", enrolment.run());

    let first = mesh.pod("first", "10.9.0.1").await;
    let second = mesh.pod("second", "10.9.0.2").await;
    let agent = Agent::accept(&listener).await;
    assert_eq!(agent.add(&first).await, Ok(()));
    assert!(!readiness.is_ready());
    assert_eq!(
        agent.send_request(Request::SnapshotSent, None).await,
        Ok(())
    );
    ambit_testkit::wait_until("the snapshot makes it ready", || readiness.is_ready()).await;
    assert_eq!(agent.add(&second).await, Ok(()));
    // The listeners are active as soon as the acknowledgement arrives.
    for pod in [&first, &second] {
        for port in [15001, 15006, 15008] {
            // Connections from here are rejected by a reset.
            if let Err(error) = pod.connect(SocketAddr::new(pod.ip, port)).await {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{port}");
            }
        }
    }
    let dump = served.dump();
    assert_eq!(dump["uid-first"]["state"], "Up");
    assert_eq!(dump["uid-first"]["info"]["name"], "first");

    drop(agent);
    ambit_testkit::wait_until("without an agent it is not ready", || !readiness.is_ready()).await;
    second
        .connect(SocketAddr::new(second.ip, 15008))
        .await
        .unwrap();

    let agent = Agent::accept(&listener).await;
    assert_eq!(
        agent
            .send_request(Request::Keep { uid: uid(&first) }, None)
            .await,
        Ok(())
    );
    assert_eq!(
        agent.send_request(Request::SnapshotSent, None).await,
        Ok(())
    );
    assert_eq!(
        served.pods().len(),
        1,
        "what the snapshot does not name goes"
    );
    assert_eq!(
        agent
            .send_request(Request::Del { uid: uid(&first) }, None)
            .await,
        Ok(())
    );
    assert!(served.pods().is_empty());
    let to = SocketAddr::new(first.ip, 15008);
    // Each worker closes its own listeners.
    let closed = async { while first.connect(to).await.is_ok() {} };
    let closed = tokio::time::timeout(Duration::from_secs(20), closed).await;
    assert!(closed.is_ok(), "the listeners of a deleted pod stay");
}

#[tokio::test]
async fn pod_with_an_occupied_port_is_rejected_others_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zds.sock");
    let listener = SeqPacketListener::bind(&path).unwrap();
    let mut mesh = Mesh::with_env(&[("INPOD_UDS", path.to_str().unwrap())]).await;
    let readiness = Readiness::new();
    let task = readiness.add_pending_task("workload proxy manager");
    let node = &mesh.nodes[0];
    let enrolment = EnrolmentClient::new(
        node.proxy.clone(),
        Arc::clone(&node.workers),
        Supervisor::unsupervised(),
        task,
    );
    let _enrolment = ambit_rt::spawn_abortable("enrolment", enrolment.run());
    let taken = mesh.pod("taken", "10.9.0.1").await;
    let good = mesh.captured_pod(1, "good", "10.9.0.2").await;
    let other = mesh.pod("other", "10.9.0.3").await;
    good.serve_echo(8080);
    let _port = taken.listen(15006);
    let agent = Agent::accept(&listener).await;
    let refusal = agent.add(&taken).await.unwrap_err();
    assert!(
        refusal.starts_with("failure to start proxy : "),
        "{refusal}"
    );
    assert!(refusal.contains("15006"), "{refusal}");
    assert_eq!(agent.add(&other).await, Ok(()));
    assert_eq!(
        agent.send_request(Request::SnapshotSent, None).await,
        Ok(())
    );
    assert!(!readiness.is_ready(), "one is pending");
    let spec = ambit_netplan::RedirectionSpec::default();
    ambit_sys::redirection::apply(other.netns(), &spec).unwrap();
    let mut stream = other.connect(SocketAddr::new(good.ip, 8080)).await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "10.9.0.3");
}
