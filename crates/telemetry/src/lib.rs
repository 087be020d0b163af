//! Metric families and the access log, in the names Istio's dashboards know.
