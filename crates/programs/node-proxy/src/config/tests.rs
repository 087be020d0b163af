//! Tests settings from the environment, and that errors name the variable of a rejected value.

use ambit_proxy::environment::SettingError;

use super::*;

fn config(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_env(&Env::from_pairs(pairs.iter().copied()))
}

#[test]
fn defaults_match_the_contract() {
    let config = config(&[]).unwrap();
    assert_eq!(
        config.xds.address.as_deref(),
        Some("https://localhost:15012")
    );
    assert_eq!(
        config.inpod_uds,
        PathBuf::from("/var/run/ztunnel/ztunnel.sock")
    );
    assert_eq!(config.packet_mark, Some(0x539));
    assert_eq!(config.cluster_id, "Kubernetes");
    assert_eq!(
        (config.admin_port, config.stats_port, config.readiness_port),
        (15000, 15020, 15021)
    );
    assert_eq!(config.self_termination_deadline, Duration::from_secs(5));
    assert_eq!(*config.http2, Settings::default());
    assert_eq!(config.tuning.user_timeout, None);
    assert!(!config.missing_policy_allow && !config.keep_last_good_policy);
    assert_eq!(config.missing_policy_grace, Duration::from_secs(10));
    assert_eq!(config.waypoint_grace, None);
}

#[test]
fn unknown_destinations_are_rejected_only_by_setting() {
    let with = |mode: &str| config(&[("AMBIT_OUTBOUND_TRAFFIC_POLICY", mode)]);
    assert!(with("REGISTRY_ONLY").unwrap().registry_only);
    for mode in ["", "ALLOW_ANY"] {
        assert!(!with(mode).unwrap().registry_only, "{mode}");
    }
    for mode in ["registry_only", "REGISTRY"] {
        let error = with(mode).unwrap_err().to_string();
        assert!(error.contains("AMBIT_OUTBOUND_TRAFFIC_POLICY"), "{error}");
    }
}

#[test]
fn addresses_get_a_scheme_and_http_is_rejected() {
    let with = |address: &str| config(&[("XDS_ADDRESS", address)]);
    let address = with("istiod:15012").unwrap().xds.address;
    assert_eq!(address.as_deref(), Some("https://istiod:15012"));
    assert_eq!(with("").unwrap().xds.address, None);
    assert!(matches!(
        with("http://istiod:15010"),
        Err(ConfigError::Setting(SettingError::PlainHttp { .. }))
    ));
    let in_cluster = config(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]).unwrap();
    assert_eq!(
        in_cluster.ca.address.as_deref(),
        Some("https://istiod.istio-system.svc:15012")
    );
}

#[test]
fn environment_overrides_the_proxy_configuration() {
    let yaml =
        "discoveryAddress: a:1\nstatsPort: 1\nconcurrency: 3\nproxyMetadata: {CLUSTER_ID: c}";
    let read = config(&[("PROXY_CONFIG", yaml)]).unwrap();
    assert_eq!(read.xds.address.as_deref(), Some("https://a:1"));
    assert_eq!((read.stats_port, read.num_worker_threads), (1, 3));
    assert_eq!(
        read.proxy_metadata,
        [("CLUSTER_ID".to_owned(), "c".to_owned())]
    );
    let read = config(&[("PROXY_CONFIG", yaml), ("XDS_ADDRESS", "b:2")]).unwrap();
    assert_eq!(read.xds.address.as_deref(), Some("https://b:2"));
}

#[test]
fn errors_name_the_variable() {
    for (name, value) in [
        ("PACKET_MARK", "x"),
        ("SECRET_TTL", "1 day"),
        ("IPV6_ENABLED", "maybe"),
        ("HTTP2_FRAME_SIZE", "1"),
        ("POOL_MAX_STREAMS_PER_CONNECTION", "0"),
        ("INSTANCE_IP", "10.0.0"),
        ("PROXY_MODE", "solo"),
        ("ZTUNNEL_WORKER_THREADS", "many"),
        ("PROXY_CONFIG", "statsPort: [1]"),
    ] {
        let error = config(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    assert!(matches!(
        config(&[("FAKE_CA", "true")]),
        Err(ConfigError::FakeCa)
    ));
    let both = [("LOCAL_XDS_PATH", "a"), ("LOCAL_XDS", "b")];
    assert!(matches!(
        config(&both),
        Err(ConfigError::MutuallyExclusive(..))
    ));
}

#[test]
fn dns_capture_is_on_by_default_and_excludes_on_demand_xds() {
    let answers = |text| {
        config(&[("ISTIO_META_DNS_CAPTURE", text)])
            .unwrap()
            .dns_proxy
    };
    assert!(config(&[]).unwrap().dns_proxy && answers("true"));
    assert!(!answers("false") && !answers(""));
    let on_demand = ("XDS_ON_DEMAND", "true");
    assert!(matches!(
        config(&[on_demand]),
        Err(ConfigError::OnDemandDns)
    ));
    assert!(config(&[on_demand, ("ISTIO_META_DNS_CAPTURE", "false")]).is_ok());
}
