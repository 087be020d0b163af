//! Scripted node proxy that acknowledges orders without opening sockets.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use ambit_sys::{
    netns::{Netns, NetnsId},
    seqpacket::SeqPacket,
};
use ambit_wire::zds_codec;
use ambit_zds::{MAX_RECORD_BYTES, ProxyEffect, ProxyEvent, ProxySide, WorkloadInfo};
use tokio::sync::oneshot;

/// State of the scripted proxy, for assertions of the test.
#[derive(Default)]
pub struct ProxyRecord {
    /// Pods that the proxy was ordered to serve.
    pub serves: BTreeMap<String, (NetnsId, WorkloadInfo)>,
    /// Pods that the proxy fails to serve.
    pub failing: BTreeSet<String>,
    /// Number of complete snapshots that the proxy received.
    pub snapshots: usize,
}

/// Running scripted proxy, which ends when dropped.
pub struct FakeProxy {
    pub record: Arc<Mutex<ProxyRecord>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl FakeProxy {
    pub fn start(socket: PathBuf) -> Self {
        let seen = Arc::new(Mutex::new(ProxyRecord::default()));
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&seen);
        let thread = thread::spawn(move || {
            let runtime = ambit_rt::current_thread_runtime().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = run(socket, shared) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            record: seen,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn serves(&self, uid: &str) -> Option<NetnsId> {
        self.record
            .lock()
            .unwrap()
            .serves
            .get(uid)
            .map(|(netns, _)| *netns)
    }
}

impl Drop for FakeProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn run(socket: PathBuf, seen: Arc<Mutex<ProxyRecord>>) {
    let mut side = ProxySide::new();
    loop {
        if let Ok(connection) = SeqPacket::connect(&socket).await {
            side.on_event(ProxyEvent::Connected, Instant::now());
            if connection
                .send(&zds_codec::encode_hello(), None)
                .await
                .is_ok()
            {
                serve_agent(&connection, &mut side, &seen).await;
            }
            side.on_event(ProxyEvent::Disconnected, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(5)).await; // tidy: the pause of a proxy that dials again
    }
}

async fn serve_agent(
    connection: &SeqPacket,
    side: &mut ProxySide<Netns>,
    seen: &Mutex<ProxyRecord>,
) {
    let mut buffer = [0; MAX_RECORD_BYTES];
    loop {
        let Ok(received) = connection.recv(&mut buffer).await else {
            return;
        };
        if received.len == 0 {
            return;
        }
        let request = zds_codec::decode_request(&buffer[..received.len]).unwrap();
        let end_of_snapshot = matches!(request, ambit_zds::Request::SnapshotSent);
        let netns = received.fd.map(|fd| Netns::from_fd(fd).unwrap());
        let mut todo = VecDeque::from([ProxyEvent::Request(request, netns)]);
        while let Some(event) = todo.pop_front() {
            for effect in side.on_event(event, Instant::now()) {
                let mut seen = seen.lock().unwrap();
                match effect {
                    ProxyEffect::Start {
                        uid,
                        generation,
                        info,
                        netns,
                    } => {
                        todo.push_back(if seen.failing.contains(&*uid) {
                            let error = "scripted".to_owned();
                            ProxyEvent::StartFailed {
                                uid,
                                generation,
                                error,
                            }
                        } else {
                            seen.serves.insert(uid.to_string(), (netns.id(), info));
                            ProxyEvent::Started { uid, generation }
                        });
                    }
                    ProxyEffect::Update { uid, info, .. } => {
                        if let Some(pod) = seen.serves.get_mut(&*uid) {
                            pod.1 = info;
                        }
                    }
                    ProxyEffect::Stop { uid, .. } => drop(seen.serves.remove(&*uid)),
                    ProxyEffect::Reply(ack) => {
                        drop(seen);
                        let ack = zds_codec::encode_ack(&ack);
                        // The agent may have been killed meanwhile: the next one is dialled.
                        if connection.send(&ack, None).await.is_err() {
                            return;
                        }
                    }
                    ProxyEffect::Disconnect => panic!("the agent broke the contract"),
                }
            }
        }
        if end_of_snapshot {
            seen.lock().unwrap().snapshots += 1;
        }
    }
}
