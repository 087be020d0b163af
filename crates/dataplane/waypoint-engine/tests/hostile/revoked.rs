//! Tests of clients whose certificate is revoked while they are connected.

use ambit_testkit::{Pki, build};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::fixture::{TCP, TIMEOUT, World, bind_listener, read_response};

const SERVICE: &str = "10.96.0.1";

#[tokio::test]
async fn revoked_client_loses_its_tunnels_and_cannot_open_others() {
    let (pki, lists) = Pki::with_crls();
    let world = World::with_pki(&[("CRL_PATH", "")], pki).await;
    let (application, address) = bind_listener().await;
    world.serve("db", SERVICE, &[address]);
    let certificate = |name: &str| world.pki.cert(&build::identity("ns", name));
    let (revoked, other) = (certificate("client"), certificate("client"));
    let bystander = certificate("bystander");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca-crl.pem");
    let revoke = |certificate| {
        std::fs::write(&path, world.pki.revoke(&[certificate])).unwrap();
        lists.load(&path).unwrap();
    };

    let client = world.client_with_certificate(&revoked).await;
    let mut tunnel = client.tunnel(SERVICE, TCP).await;
    tunnel.write_all(b"one").await.unwrap();
    let (mut stream, _) = timeout(TIMEOUT, application.accept())
        .await
        .unwrap()
        .unwrap();
    let mut bytes = [0; 3];
    timeout(TIMEOUT, stream.read_exact(&mut bytes))
        .await
        .unwrap()
        .unwrap();
    // A certificate of the same identity, in use at the same time.
    let of_other = world.client_with_certificate(&other).await;
    let mut stays = of_other.tunnel(SERVICE, TCP).await;
    stays.write_all(b"one").await.unwrap();
    let (mut kept, _) = timeout(TIMEOUT, application.accept())
        .await
        .unwrap()
        .unwrap();

    // The revocation of another certificate changes nothing.
    revoke(&bystander);
    tunnel.write_all(b"two").await.unwrap();
    timeout(TIMEOUT, stream.read_exact(&mut bytes))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&bytes, b"two");

    revoke(&revoked);
    let rest = read_response(tunnel).await;
    assert!(!rest.ended_with_fin && rest.bytes.is_empty(), "{rest:?}");
    // The application's connection is closed, too.
    let read = timeout(TIMEOUT, stream.read(&mut bytes)).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert!(client.try_tunnel(SERVICE, TCP).await.is_err());
    let again = world.try_client(&revoked).await;
    let refused = match again {
        Some(client) => client.try_tunnel(SERVICE, TCP).await.is_err(),
        None => true,
    };
    assert!(refused, "a revoked client opened a tunnel");

    stays.write_all(b"two").await.unwrap();
    let mut both = [0; 6];
    timeout(TIMEOUT, kept.read_exact(&mut both))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&both, b"onetwo");
}
