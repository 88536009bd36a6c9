// A peer in Go with pion: peer offer|answer SERVER ORIGIN TOPIC
package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"

	"github.com/pion/webrtc/v3"
)

type session struct{ Code, Offer, Answer string }

var peer *webrtc.PeerConnection

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func call(method, path string, body map[string]any, result any) {
	text := strings.TrimPrefix(string(must(json.Marshal(body))), "null")
	request := must(http.NewRequest(method, os.Args[2]+path, strings.NewReader(text)))
	request.Header.Set("Origin", os.Args[3])
	response := must(http.DefaultClient.Do(request))
	if must(0, json.NewDecoder(response.Body).Decode(result)); response.StatusCode != 200 {
		panic(response.Status)
	}
}

func describe(own webrtc.SessionDescription, err error) string { // with all candidates
	gathered := webrtc.GatheringCompletePromise(peer)
	must(0, peer.SetLocalDescription(must(own, err)))
	<-gathered
	return string(must(json.Marshal(peer.LocalDescription())))
}

func main() {
	topic, config, other, found := "/"+os.Args[4], webrtc.Configuration{}, webrtc.SessionDescription{}, session{}
	call("GET", "/ice-servers", nil, &config)
	peer = must(webrtc.NewPeerConnection(config))
	if os.Args[1] == "offer" {
		channel := must(peer.CreateDataChannel("", nil))
		channel.OnOpen(func() { channel.SendText("hello") })
		channel.OnMessage(func(message webrtc.DataChannelMessage) { os.Stdout.Write(append(message.Data, '\n')) })
		call("POST", topic+"/offer", map[string]any{"info": "Go", "offer": describe(peer.CreateOffer(nil))}, &found)
		for found.Answer == "" { // a poll waits for it
			call("POST", "/poll", map[string]any{"code": found.Code, "side": "offerer", "wait": 45}, &found)
		}
		must(0, json.Unmarshal([]byte(found.Answer), &other))
		must(0, peer.SetRemoteDescription(other))
	} else {
		peer.OnDataChannel(func(channel *webrtc.DataChannel) {
			channel.OnMessage(func(message webrtc.DataChannelMessage) { channel.SendText(string(message.Data)) })
		})
		var listing struct{ Sessions []session }
		for len(listing.Sessions) == 0 { // the request waits for one
			call("GET", topic+"/sessions?limit=1&wait=45", nil, &listing)
		}
		found = listing.Sessions[0]
		must(0, json.Unmarshal([]byte(found.Offer), &other))
		must(0, peer.SetRemoteDescription(other))
		call("POST", "/answer", map[string]any{"code": found.Code, "side": "answerer", "answer": describe(peer.CreateAnswer(nil))}, &found)
	}
	select {}
}
