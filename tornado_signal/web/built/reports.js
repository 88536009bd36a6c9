export default core=>{
async function d(s,l,i,a){let e=()=>new Map,n=a&&await l.getStats().catch(e)||e(),c=[...n.values()],{selectedCandidatePairId:p}=c.find(({type:t})=>t==="transport")??{},r=c.find(({id:t,selected:S})=>t===p||S),[o,m]=[r?.localCandidateId,r?.remoteCandidateId].map(t=>n.get(t));await s.report({outcome:a?"connected":"failed",local:o?.candidateType,remote:m?.candidateType,transport:o?.relayProtocol??o?.protocol,ms:100*Math.ceil(i/100)})}return({report:d});
}
//# sourceMappingURL=reports.js.map
