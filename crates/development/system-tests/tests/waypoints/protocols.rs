//! Kinds of traffic, end to end through real proxies and a waypoint.
