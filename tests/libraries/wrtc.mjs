import wrtc from "@roamhq/wrtc";

export const { RTCPeerConnection, RTCSessionDescription, RTCIceCandidate } = wrtc;
